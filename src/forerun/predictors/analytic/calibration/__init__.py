"""Calibration: the constants that runs identify, by robust maximum a posteriori."""
