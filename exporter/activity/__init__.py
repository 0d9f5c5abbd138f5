"""What one GPU does with its time: working, waiting or idle, by the best evidence there is."""
