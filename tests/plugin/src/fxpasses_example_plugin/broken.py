"""A pass of a package that lacks something it needs."""

import a_package_that_nobody_has  # noqa: F401

Broken = None
