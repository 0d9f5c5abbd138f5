"""The program `diagnose`: why a pipeline is as fast as it is."""
