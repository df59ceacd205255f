# SPDX-License-Identifier: Apache-2.0
"""A source tree made by rule: the same names, sizes and bytes on every machine."""

import os
import random
import subprocess

WORDS = ('alloc array buffer bytes cache close count data depth device entry error event field file first flags '
         'free group handle index inode input last length limit line list lock map mode name next node number '
         'offset open order output page path pool queue range read ready release request result return root '
         'scan session size slot source space start state status step store table target time token tree type '
         'update user value wait word write').split()
FILES_A_DIRECTORY = 25


def _text(rng, size):
    """About `size` bytes of lines that look like code and compress like it."""
    lines, got = [], 0
    while got < size:
        a, b, c = rng.choice(WORDS), rng.choice(WORDS), rng.choice(WORDS)
        line = f'{"    " * rng.randrange(1, 4)}{a}_{b}({c}, {rng.randrange(10000)}); /* {b} {a} */\n'
        lines.append(line)
        got += len(line)
    return ''.join(lines)


def make_tree(path, files, seed=1):
    """`files` files in nested directories; sizes as in real trees: most small, few large. Returns the bytes."""
    rng = random.Random(seed)
    total = 0
    for i in range(files):
        group = i // FILES_A_DIRECTORY
        where = os.path.join(path, WORDS[group % 12], f'{WORDS[group % len(WORDS)]}{group:03d}')
        os.makedirs(where, exist_ok=True)
        text = _text(rng, min(400_000, int(rng.lognormvariate(8.2, 1.2))))
        with open(os.path.join(where, f'{rng.choice(WORDS)}_{i:05d}.{rng.choice("chh")}'), 'w', encoding='ascii') as f:
            f.write(text)
        total += len(text)
    return total


def make_repository(path, files, env):
    """The tree as a repository with one commit in one pack."""
    total = make_tree(path, files)
    dated = env | {'GIT_AUTHOR_DATE': '2024-01-01T00:00:00Z', 'GIT_COMMITTER_DATE': '2024-01-01T00:00:00Z'}
    for words in (['init', '-q', '-b', 'main'], ['add', '-A'],
                  ['-c', 'user.name=bench', '-c', 'user.email=bench@localhost', 'commit', '-q', '-m', 'all'],
                  ['gc', '-q']):
        subprocess.run(['git', '-C', path, *words], env=dated, check=True, stdin=subprocess.DEVNULL)
    return total
