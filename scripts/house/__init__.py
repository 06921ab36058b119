"""The checks of scripts/check-house, one module for each thing that they look at."""
