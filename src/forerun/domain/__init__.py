"""The nouns of forerun: frozen values and pure arithmetic, with no input or output."""
