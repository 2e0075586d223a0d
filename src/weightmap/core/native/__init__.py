"""The C module, `weightmap._kernels`, as Python calls it: one module a topic. Only this package imports it."""
