"""GPUs as a source: `nvml` is the door to the driver, `sampler` the thread that asks it."""
