"""How GPUs are told apart: a GPU of an instance."""

from typing import Final

BY: Final = "instance, gpu"
"""Labels by which figures of GPUs are grouped."""
NAME: Final = "GPU {{gpu}} {{instance}}"
"""Their name in a legend."""
