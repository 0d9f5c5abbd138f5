"""Why a pipeline is slow: figures of a steady window → hypotheses → a verdict. Pure: no clock."""
