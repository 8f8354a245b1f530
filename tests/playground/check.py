#!/usr/bin/env python3
"""check.py [NAME...]: the tests of the playground in Chromium; ends with `N passed, N failed`. NAME: only these, as unittest names them
(test_panes.Mask). BUILD names the folder of what is built."""

import sys
import unittest

import support


def main():
    names = sys.argv[1:] or ["test_editor", "test_panes", "test_page"]
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    support.Browser.close()
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
