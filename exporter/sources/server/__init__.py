"""SGLang's own HTTP endpoint as a source of facts."""
