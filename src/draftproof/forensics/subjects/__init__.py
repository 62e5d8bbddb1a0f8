"""What can be compared: our engine, transformers, servers, recorded files."""
