"""A log that was saved: a text file, or the journal exported as JSON."""
