# SPDX-License-Identifier: Apache-2.0
"""docs/promises.md: every promise has a test that exists."""

import os
import re

import pytest

from harness import CHECKOUT, read

PAGE = f'{CHECKOUT}/docs/promises.md'


def rows():
    """(promise, [test, …]) of each row of the page's tables."""
    found = []
    with open(PAGE, encoding='utf-8') as page:
        lines = page.read().splitlines()
    for line in lines:
        cells = [c.strip() for c in line.strip().strip('|').split('|')]
        if line.startswith('|') and len(cells) == 2 and not set(cells[0]) <= set('- :') and cells[0] != 'Promise':
            found.append((cells[0], re.findall(r'`([^`]+)`', cells[1])))
    return found


def exists(reference):
    path, _, name = reference.partition('::')
    full = f'{CHECKOUT}/{path}'
    if not os.path.exists(full) or not name:
        return False
    if path.endswith('.py'):
        return re.search(rf'^(?:async )?def {re.escape(name)}\(', read(full), re.M) is not None
    return re.search(rf'\b(?:static )?void {re.escape(name)}\(', read(full)) is not None


def test_the_page_lists_many_promises():
    assert len(rows()) >= 80


@pytest.mark.parametrize('promise, tests', rows(), ids=[f'line {i}' for i in range(len(rows()))])
def test_a_promise_names_a_test_that_exists(promise, tests):
    assert tests, f'no test proves: {promise}'
    for reference in tests:
        assert exists(reference), f'{reference} does not exist; it was to prove: {promise}'


def test_the_check_notices_a_missing_test():
    assert not exists('tests/system/test_tree.py::test_that_does_not_exist')
    assert not exists('tests/system/test_none.py::test_x')
    assert not exists('tests/system/test_tree.py')
    assert exists('tests/system/test_promises.py::test_the_check_notices_a_missing_test')
