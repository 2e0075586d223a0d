"""Plans: which bytes of a model to read, in which order, and by whom. No framework is known here."""
