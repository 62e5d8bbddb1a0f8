"""Say whether two outputs differ, why, and prove that the detector works."""
