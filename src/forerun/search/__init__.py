"""Search: every legal plan on every cluster scored as columns, and the best of them explained."""
