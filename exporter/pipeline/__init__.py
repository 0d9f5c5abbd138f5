"""What the stages of one server do together: bubbles, time in flight, micro-batch slots."""
