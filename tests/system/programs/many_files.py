# SPDX-License-Identifier: Apache-2.0
"""Makes DIRECTORIES directories d0, d1, … with FILES small files f0, f1, … each.

    many_files.py WHERE DIRECTORIES FILES"""

import os
import sys

where, directories, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for i in range(directories):
    os.mkdir(f'{where}/d{i}')
    here = os.open(f'{where}/d{i}', os.O_RDONLY)
    for j in range(files):
        fd = os.open(f'f{j}', os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=here)
        os.write(fd, b'x')
        os.close(fd)
    os.close(here)
