"""What reached the model of late, kept small, to be written as a recording when somebody asks."""
