# SPDX-License-Identifier: Apache-2.0
"""What figures depend on, and the programs that are measured."""

import os
import platform
import shlex
import subprocess
import sys

from variants import Trouble

CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCUMENT = f'{CHECKOUT}/docs/benchmarks.md'
PLACES_OF_THIS_MACHINE = {'--build', '--dir', '--json', '--program'}


def built(build, *programs):
    """Paths of the programs to measure; without a build directory they are built in one of their own."""
    own = build or f'{CHECKOUT}/build-tests/release'
    if not build:
        if not os.path.exists(f'{own}/build.ninja'):
            subprocess.run(['meson', 'setup', own, CHECKOUT, '--buildtype=release'], check=True, stdout=sys.stderr)
        subprocess.run(['ninja', '-C', own, *programs], check=True, stdout=sys.stderr)
    paths = [f'{own}/{p}' for p in programs]
    for path in paths:
        if not os.access(path, os.X_OK):
            raise Trouble(f'{path} is not there')
    return paths


def compile_c(source, top, *words):
    """The program made of a C file beside this one, below `top`."""
    program = f'{top}/{os.path.splitext(source)[0]}'
    where = os.path.join(os.path.dirname(os.path.abspath(__file__)), source)
    subprocess.run([os.environ.get('CC', 'cc'), '-O2', '-o', program, where, *words], check=True)
    return program


def processor():
    with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as f:
        for line in f:
            if line.startswith('model name'):
                return line.split(':', 1)[1].strip()
    return platform.machine()


def described():
    return f'{len(os.sched_getaffinity(0))} cores ({processor()}), Linux {platform.release()}'


def filesystem(path):
    return subprocess.run(['findmnt', '-n', '-o', 'FSTYPE', '-T', path], capture_output=True, text=True,
                          check=False).stdout.strip() or 'unknown'


def command_line(name):
    """How to do this again, without the places of this machine."""
    words, skip = [], False
    for word in sys.argv[1:]:
        if skip or word.split('=')[0] in PLACES_OF_THIS_MACHINE:
            skip = not skip and '=' not in word
            continue
        words.append(word)
    return shlex.join([f'tests/bench/{name}', *words])
