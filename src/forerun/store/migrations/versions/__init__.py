"""One file a step, in order; each says what it adds. Steps that were released never change."""
