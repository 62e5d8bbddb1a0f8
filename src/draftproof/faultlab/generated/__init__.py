"""Generated faults: operator x place x circumstance, drawn at random, half of them held out."""
