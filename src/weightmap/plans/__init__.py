"""Plans: which bytes of a model to read, in which order, and by whom; independent of frameworks."""
