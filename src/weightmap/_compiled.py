"""Its compiled form, which `startup` writes, has the compiled code of every module that `import weightmap` loads."""

MODULES: object = "none"  # in the compiled form: the folder of the package, and an `Entry` for each module
