# SPDX-License-Identifier: Apache-2.0
"""fsx: a long random sequence of reads, writes, mappings, truncations and holes of one file, of which
every byte is known at every moment."""

import subprocess

import pytest

from harness import write
from workbench import crate

pytestmark = pytest.mark.timeout(900)  # it may have to be built first

# Mappings are rare, since each costs many page faults, which are slow in a virtual machine.
SETTINGS = '''
flen = 262144
nomsyncafterwrite = true
[opsize]
min = 1
max = 16384
[weights]
close_open = 1
read = 10
write = 10
mapread = 1
mapwrite = 1
invalidate = 0.2
truncate = 5
fsync = 0.01
fdatasync = 0.01
posix_fallocate = 1
punch_hole = 1
sendfile = 3
posix_fadvise = 0.2
copy_file_range = 3
'''


def exercise(workdir, path, operations, seed):
    program = crate('fsx', '0.3.2', (1, 85))
    write(f'{workdir}/fsx.toml', SETTINGS)
    done = subprocess.run([program, '-q', '-f', f'{workdir}/fsx.toml', '-N', str(operations), '-S', str(seed), '-P', workdir,
                           path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=580, check=False)
    assert done.returncode == 0 and 'A-OK' in done.stdout, done.stdout[-6000:]


@pytest.mark.parametrize('passthrough', ['auto', 'off'])
def test_a_hundred_thousand_random_operations_leave_every_byte_in_its_place(mount, workdir, passthrough):
    s = mount(passthrough=passthrough).session().use()
    exercise(workdir, s / 'f', 100000, 20260807)


@pytest.mark.slow
@pytest.mark.parametrize('passthrough', ['auto', 'off'])
def test_other_sequences_leave_every_byte_in_its_place_too(mount, workdir, passthrough):
    s = mount(passthrough=passthrough).session().use()
    for seed in range(1, 5):
        exercise(workdir, s / f'f{seed}', 50000, seed)
