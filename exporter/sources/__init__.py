"""Where records come from: one file a source, none knows another."""
