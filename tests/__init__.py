"""The tests. A package, so that `tests.helpers` is ours wherever a dependency installs a `tests` of its own."""
