"""K chosen for every row and round from what rounds cost and what rows accept, both measured."""
