# SPDX-License-Identifier: Apache-2.0
"""Ordinary file operations in a session do what they do on a native file system: most tests here
run twice, in a session and on the disk below, and compare."""

import errno
import fcntl
import mmap
import os
import random
import shutil
import socket
import stat
import subprocess
import tempfile
import threading

import pytest

from harness import (RENAME_EXCHANGE, RENAME_NOREPLACE, append, descriptors_of, errno_of, fallocate, in_child, open_errno,
                     read, renameat2, run, sh, tree, wait_for, write)

FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE = 1, 2, 16


@pytest.fixture(params=['session', 'native'])
def d(request, top):
    """A directory to work in; the native one shows that the test itself is right."""
    if request.param == 'session':
        yield request.getfixturevalue('fresh').use().path
        return
    path = tempfile.mkdtemp(dir=top)
    yield path
    shutil.rmtree(path)


# ── data ────────────────────────────────────────────────────────────────────────────────────

def test_what_was_written_is_read_back(d):
    write(f'{d}/f', 'hello')
    assert read(f'{d}/f') == 'hello'
    assert os.stat(f'{d}/f').st_size == 5


@pytest.mark.parametrize('size', [0, 1, 4095, 4096, 4097, 131072, 1 << 20, (1 << 22) + 7])
def test_files_of_all_sizes_come_back_whole(d, size):
    data = random.Random(size).randbytes(size)
    write(f'{d}/f', data)
    with open(f'{d}/f', 'rb') as f:
        assert f.read() == data
    assert os.stat(f'{d}/f').st_size == size


def test_random_writes_reads_and_truncations_agree_with_a_model(d):
    rng = random.Random(7)
    model = bytearray()
    fd = os.open(f'{d}/f', os.O_RDWR | os.O_CREAT)
    try:
        for _ in range(600):
            what, at, n = rng.randrange(10), rng.randrange(200000), rng.randrange(1, 20000)
            if what < 5:
                piece = rng.randbytes(n)
                os.pwrite(fd, piece, at)
                model.extend(bytes(max(0, at + n - len(model))))
                model[at:at + n] = piece
            elif what < 8:
                assert os.pread(fd, n, at) == bytes(model[at:at + n])
            elif what < 9:
                os.ftruncate(fd, at)
                model[at:] = bytes(max(0, at - len(model)))
            else:
                assert os.fstat(fd).st_size == len(model)
    finally:
        os.close(fd)
    with open(f'{d}/f', 'rb') as f:
        assert f.read() == bytes(model)


def test_append_writes_at_the_end_whoever_else_writes(d):
    write(f'{d}/f', 'a')
    one, two = (os.open(f'{d}/f', os.O_WRONLY | os.O_APPEND) for _ in range(2))
    for _ in range(10):
        os.write(one, b'1')
        os.write(two, b'2')
    os.close(one)
    os.close(two)
    assert read(f'{d}/f') == 'a' + '12' * 10


def test_truncation_by_name_by_descriptor_and_by_open(d):
    write(f'{d}/f', 'hello world')
    os.truncate(f'{d}/f', 5)
    assert read(f'{d}/f') == 'hello'
    with open(f'{d}/f', 'r+b') as f:
        os.ftruncate(f.fileno(), 8)
    assert read(f'{d}/f') == 'hello\0\0\0'
    os.close(os.open(f'{d}/f', os.O_WRONLY | os.O_TRUNC))
    assert os.stat(f'{d}/f').st_size == 0


def test_a_hole_reads_as_zeros(d):
    with open(f'{d}/f', 'wb') as f:
        f.seek(1 << 20)
        f.write(b'x')
    data = open(f'{d}/f', 'rb').read()
    assert data == bytes(1 << 20) + b'x'


def test_holes_can_be_found(d):
    fd = os.open(f'{d}/f', os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, b'x' * 65536, 0)
        os.pwrite(fd, b'x' * 65536, 1 << 20)
        os.fsync(fd)
        assert os.lseek(fd, 0, os.SEEK_DATA) == 0
        hole = os.lseek(fd, 0, os.SEEK_HOLE)
        assert 65536 <= hole <= 1 << 20
        assert os.lseek(fd, hole, os.SEEK_DATA) == 1 << 20
        assert os.lseek(fd, 0, os.SEEK_END) == (1 << 20) + 65536
        assert errno_of(os.lseek, fd, 1 << 30, os.SEEK_DATA) == 'ENXIO'
    finally:
        os.close(fd)


def test_fallocate_reserves_punches_and_zeroes(d):
    fd = os.open(f'{d}/f', os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, 100000)
        assert os.fstat(fd).st_size == 100000
        fallocate(fd, FALLOC_KEEP_SIZE, 0, 200000)
        assert os.fstat(fd).st_size == 100000
        os.pwrite(fd, b'x' * 100000, 0)
        fallocate(fd, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 4096, 8192)
        assert os.pread(fd, 16384, 0) == b'x' * 4096 + bytes(8192) + b'x' * 4096
        fallocate(fd, FALLOC_ZERO_RANGE, 0, 4096)
        assert os.pread(fd, 4096, 0) == bytes(4096)
    finally:
        os.close(fd)


def test_copy_file_range_copies(d):
    write(f'{d}/a', b'0123456789' * 1000)
    with open(f'{d}/a', 'rb') as src, open(f'{d}/b', 'wb') as dst:
        assert os.copy_file_range(src.fileno(), dst.fileno(), 5000, 5, 0) == 5000
    assert read(f'{d}/b') == ('0123456789' * 1000)[5:5005]


def test_cp_with_reflink_and_sparse_copies(d):
    write(f'{d}/a', b'x' * 10000)
    run('cp', '--reflink=auto', '--sparse=always', f'{d}/a', f'{d}/b')
    assert read(f'{d}/b') == 'x' * 10000


def test_sendfile_and_splice_work(d):
    write(f'{d}/a', b'y' * 100000)
    sh(f'cat {d}/a | cat > {d}/b && cmp {d}/a {d}/b')
    with open(f'{d}/a', 'rb') as src, open(f'{d}/c', 'wb') as dst:
        left = 100000
        while left:
            left -= os.sendfile(dst.fileno(), src.fileno(), None, left)
    run('cmp', f'{d}/a', f'{d}/c')


def test_a_shared_mapping_writes_to_the_file(d):
    write(f'{d}/f', b'\0' * 8192)

    def change():
        with open(f'{d}/f', 'r+b') as f, mmap.mmap(f.fileno(), 8192) as m:
            m[5:10] = b'hello'
            m.flush()
            return os.pread(f.fileno(), 5, 5)
    assert in_child(change) == b'hello'
    assert read(f'{d}/f')[5:10] == 'hello'


def test_a_write_is_seen_through_a_mapping(d):
    write(f'{d}/f', b'\0' * 4096)

    def look():
        with open(f'{d}/f', 'r+b') as f, mmap.mmap(f.fileno(), 4096) as m:
            before = bytes(m[:3])
            os.pwrite(f.fileno(), b'new', 0)
            return before, bytes(m[:3])
    assert in_child(look) == (b'\0\0\0', b'new')


def test_a_private_mapping_does_not_change_the_file(d):
    write(f'{d}/f', b'a' * 4096)

    def change():
        with open(f'{d}/f', 'r+b') as f, mmap.mmap(f.fileno(), 4096, flags=mmap.MAP_PRIVATE) as m:
            m[0:1] = b'b'
    in_child(change)
    assert read(f'{d}/f') == 'a' * 4096


def test_direct_io_works(d):
    def direct():
        fd = os.open(f'{d}/f', os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        try:
            buffer = mmap.mmap(-1, 8192)
            buffer[:] = b'd' * 8192
            assert os.write(fd, buffer) == 8192
            back = mmap.mmap(-1, 8192)
            assert os.preadv(fd, [back], 0) == 8192
            return bytes(back)
        finally:
            os.close(fd)
    assert in_child(direct) == b'd' * 8192
    assert read(f'{d}/f') == 'd' * 8192


def test_fsync_fdatasync_and_sync_of_files_and_directories_work(d):
    with open(f'{d}/f', 'wb') as f:
        f.write(b'x')
        f.flush()
        os.fsync(f.fileno())
        os.fdatasync(f.fileno())
    fd = os.open(d, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
    run('sync', '-f', f'{d}/f')


def test_a_program_can_be_run_from_there(d):
    write(f'{d}/prog', '#!/bin/sh\necho "ran $1"\n')
    assert errno_of(os.execv, f'{d}/prog', ['prog']) == 'EACCES'
    os.chmod(f'{d}/prog', 0o755)
    assert run(f'{d}/prog', 'well') == 'ran well\n'
    shutil.copy('/bin/true', f'{d}/true')
    run(f'{d}/true')


def test_a_running_program_is_not_overwritten(d):
    shutil.copy('/bin/sleep', f'{d}/sleep')
    sleeper = subprocess.Popen([f'{d}/sleep', '60'])
    try:
        wait_for(lambda: os.readlink(f'/proc/{sleeper.pid}/exe').endswith('/sleep'))
        assert open_errno(f'{d}/sleep', os.O_WRONLY) == 'ETXTBSY'
    finally:
        sleeper.kill()
        sleeper.wait()


# ── names ───────────────────────────────────────────────────────────────────────────────────

def test_creating_exclusively_fails_when_the_name_exists(d):
    os.close(os.open(f'{d}/f', os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    assert open_errno(f'{d}/f', os.O_CREAT | os.O_EXCL | os.O_WRONLY) == 'EEXIST'
    assert errno_of(os.mkdir, f'{d}/f') == 'EEXIST'
    assert errno_of(os.symlink, 'x', f'{d}/f') == 'EEXIST'


def test_a_missing_name_is_enoent_and_is_found_once_it_is_made(d):
    for i in range(20):
        assert errno_of(os.stat, f'{d}/n{i}') == 'ENOENT'
        write(f'{d}/n{i}', 'x')
        assert os.path.exists(f'{d}/n{i}')
        os.unlink(f'{d}/n{i}')
        assert errno_of(os.stat, f'{d}/n{i}') == 'ENOENT'


def test_rename_moves_and_replaces(d):
    write(f'{d}/a', '1')
    write(f'{d}/b', '2')
    number = os.stat(f'{d}/a').st_ino
    os.rename(f'{d}/a', f'{d}/b')
    assert os.listdir(d) == ['b']
    assert read(f'{d}/b') == '1'
    assert os.stat(f'{d}/b').st_ino == number


def test_rename_into_another_directory_and_back(d):
    os.makedirs(f'{d}/x/y')
    write(f'{d}/a', '1')
    os.rename(f'{d}/a', f'{d}/x/y/a')
    os.rename(f'{d}/x/y', f'{d}/z')
    assert read(f'{d}/z/a') == '1'
    assert os.listdir(f'{d}/x') == []
    os.rename(f'{d}/z/a', f'{d}/a')
    assert sorted(os.listdir(d)) == ['a', 'x', 'z']


@pytest.mark.parametrize('old, new, expected', [
    ('dir', 'dir/below', 'EINVAL'), ('dir', 'full', 'ENOTEMPTY'), ('dir', 'empty', None),
    ('file', 'empty', 'EISDIR'), ('dir', 'file', 'ENOTDIR'), ('nothing', 'x', 'ENOENT'),
    ('file', 'file', None), ('file', 'nowhere/x', 'ENOENT'), ('file', 'file2/x', 'ENOTDIR')])
def test_rename_refuses_what_posix_refuses(d, old, new, expected):
    for name in ['dir', 'full', 'full/x', 'empty']:
        os.mkdir(f'{d}/{name}')
    for name in ['file', 'file2']:
        write(f'{d}/{name}', name)
    assert errno_of(os.rename, f'{d}/{old}', f'{d}/{new}') == expected


def test_rename_of_a_hard_link_onto_its_twin_does_nothing(d):
    write(f'{d}/a', 'x')
    os.link(f'{d}/a', f'{d}/b')
    os.rename(f'{d}/a', f'{d}/b')
    assert sorted(os.listdir(d)) == ['a', 'b']


def test_renameat2_noreplace_and_exchange(d):
    write(f'{d}/a', '1')
    os.mkdir(f'{d}/b')
    assert errno_of(renameat2, f'{d}/a', f'{d}/b', RENAME_NOREPLACE) == 'EEXIST'
    renameat2(f'{d}/a', f'{d}/b', RENAME_EXCHANGE)
    assert read(f'{d}/b') == '1'
    assert os.listdir(f'{d}/a') == []
    assert errno_of(renameat2, f'{d}/a', f'{d}/none', RENAME_EXCHANGE) == 'ENOENT'
    renameat2(f'{d}/a', f'{d}/c', RENAME_NOREPLACE)
    assert sorted(os.listdir(d)) == ['b', 'c']


def test_hard_links_share_content_attributes_and_number(d):
    os.mkdir(f'{d}/x')
    write(f'{d}/a', '1')
    os.link(f'{d}/a', f'{d}/b')
    os.link(f'{d}/a', f'{d}/x/c')
    assert os.stat(f'{d}/a').st_nlink == 3
    assert len({os.stat(f'{d}/{n}').st_ino for n in ['a', 'b', 'x/c']}) == 1
    append(f'{d}/b', '2')
    os.chmod(f'{d}/x/c', 0o600)
    assert read(f'{d}/a') == '12'
    assert stat.S_IMODE(os.stat(f'{d}/a').st_mode) == 0o600
    os.unlink(f'{d}/a')
    assert os.stat(f'{d}/b').st_nlink == 2
    assert read(f'{d}/x/c') == '12'


def test_a_link_then_a_rename_over_it_as_cargo_does(d):
    for i in range(10):
        write(f'{d}/out-{i}', str(i))
        if os.path.exists(f'{d}/out'):
            os.unlink(f'{d}/out')
        os.link(f'{d}/out-{i}', f'{d}/out')
        os.link(f'{d}/out', f'{d}/tmp')
        os.rename(f'{d}/tmp', f'{d}/final')
        assert read(f'{d}/out') == str(i)


def test_cp_al_makes_a_tree_of_links(d):
    os.makedirs(f'{d}/t/u')
    write(f'{d}/t/u/f', 'x')
    run('cp', '-al', f'{d}/t', f'{d}/copy')
    assert os.path.samefile(f'{d}/t/u/f', f'{d}/copy/u/f')


def test_symbolic_links_within_the_workspace_work(d):
    os.makedirs(f'{d}/x/y')
    write(f'{d}/x/f', '1')
    for name, target in {'a': 'x/f', 'x/b': 'f', 'x/y/c': '../f', 'dir': 'x/y', 'dangling': 'nothing'}.items():
        os.symlink(target, f'{d}/{name}')
        assert os.readlink(f'{d}/{name}') == target
        assert os.lstat(f'{d}/{name}').st_size == len(target)
    for name in ['a', 'x/b', 'x/y/c', 'dir/c']:
        assert read(f'{d}/{name}') == '1'
    assert errno_of(os.stat, f'{d}/dangling') == 'ENOENT'
    write(f'{d}/dangling', '2')
    assert read(f'{d}/nothing') == '2'
    assert errno_of(os.rmdir, f'{d}/dir') == 'ENOTDIR'
    os.unlink(f'{d}/dir')
    assert os.path.isdir(f'{d}/x/y')


def test_loops_of_symbolic_links_are_eloop(d):
    os.symlink('b', f'{d}/a')
    os.symlink('a', f'{d}/b')
    assert errno_of(os.stat, f'{d}/a') == 'ELOOP'
    assert open_errno(f'{d}/a', os.O_RDONLY | os.O_NOFOLLOW) == 'ELOOP'


def test_a_symbolic_link_can_be_renamed_and_linked(d):
    os.symlink('t', f'{d}/a')
    os.rename(f'{d}/a', f'{d}/b')
    os.link(f'{d}/b', f'{d}/c', follow_symlinks=False)
    assert os.readlink(f'{d}/b') == os.readlink(f'{d}/c') == 't'
    assert os.lstat(f'{d}/b').st_nlink == 2


def test_an_unlinked_open_file_lives_on(d):
    fd = os.open(f'{d}/f', os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, b'alive')
        os.unlink(f'{d}/f')
        assert os.listdir(d) == []
        assert os.fstat(fd).st_nlink == 0
        os.write(fd, b'!')
        assert os.pread(fd, 10, 0) == b'alive!'
        os.ftruncate(fd, 2)
        os.fchmod(fd, 0o600)
        assert os.fstat(fd).st_size == 2
        write(f'{d}/f', 'another')
        assert os.pread(fd, 10, 0) == b'al'
    finally:
        os.close(fd)
    assert read(f'{d}/f') == 'another'


def test_a_descriptor_follows_its_file_through_renames(d):
    os.mkdir(f'{d}/x')
    with open(f'{d}/a', 'w', encoding='utf-8') as f:
        f.write('1')
        f.flush()
        os.rename(f'{d}/a', f'{d}/x/b')
        f.write('2')
        f.flush()
        os.rename(f'{d}/x', f'{d}/y')
        f.write('3')
    assert read(f'{d}/y/b') == '123'


def test_an_open_file_that_was_renamed_over_lives_on(d):
    write(f'{d}/a', 'old')
    write(f'{d}/b', 'new')
    with open(f'{d}/a', 'r+b') as f:
        os.rename(f'{d}/b', f'{d}/a')
        assert f.read() == b'old'
        assert os.fstat(f.fileno()).st_nlink == 0
    assert read(f'{d}/a') == 'new'


def test_rmdir_and_unlink_refuse_what_posix_refuses(d):
    os.makedirs(f'{d}/x/y')
    write(f'{d}/f', '')
    assert errno_of(os.rmdir, f'{d}/x') == 'ENOTEMPTY'
    assert errno_of(os.rmdir, f'{d}/f') == 'ENOTDIR'
    assert errno_of(os.unlink, f'{d}/x') == 'EISDIR'
    assert errno_of(os.rmdir, f'{d}/none') == 'ENOENT'
    assert errno_of(os.rmdir, f'{d}/x/.') == 'EINVAL'
    os.rmdir(f'{d}/x/y')
    assert os.stat(f'{d}/x').st_nlink == 2 or os.stat(f'{d}/x').st_nlink == 1


def test_a_directory_removed_and_made_again_is_new_and_empty(d):
    for i in range(30):
        os.mkdir(f'{d}/x')
        write(f'{d}/x/f{i}', 'x')
        assert os.listdir(f'{d}/x') == [f'f{i}']
        os.unlink(f'{d}/x/f{i}')
        os.rmdir(f'{d}/x')
        assert errno_of(os.stat, f'{d}/x') == 'ENOENT'


def test_a_file_replaced_many_times_shows_the_newest(d):
    for i in range(100):
        write(f'{d}/new', str(i))
        os.rename(f'{d}/new', f'{d}/f')
        assert read(f'{d}/f') == str(i)


def test_a_name_that_changes_its_kind_is_what_it_is_now(d):
    for _ in range(10):
        write(f'{d}/n', 'x')
        assert os.path.isfile(f'{d}/n')
        os.unlink(f'{d}/n')
        os.mkdir(f'{d}/n')
        assert os.path.isdir(f'{d}/n')
        os.rmdir(f'{d}/n')
        os.symlink('t', f'{d}/n')
        assert os.path.islink(f'{d}/n')
        os.unlink(f'{d}/n')


@pytest.mark.parametrize('name', ['x' * 255, 'ü' * 127, 'a b', '-rf', '.hidden', '..x', 'new\nline', 'tab\t', '*?[',
                                  b'\xff\xfe', b'\x01', '\\', '"', "'", '日本', '🦀', 'HEAD', 'con', '~'], ids=ascii)
def test_names_in_a_workspace_are_the_disks(d, name):
    path = os.path.join(os.fsencode(d), os.fsencode(name))
    write(path, 'x')
    assert os.listdir(os.fsencode(d)) == [os.fsencode(name)]
    assert read(path) == 'x'
    os.rename(path, os.path.join(os.fsencode(d), b'z'))
    os.rename(os.path.join(os.fsencode(d), b'z'), path)
    os.unlink(path)


def test_a_name_that_is_too_long_is_enametoolong(d):
    assert errno_of(write, f'{d}/{"x" * 256}', '') == 'ENAMETOOLONG'
    assert errno_of(os.stat, f'{d}/{"x" * 256}') == 'ENAMETOOLONG'
    assert errno_of(os.mkdir, f'{d}/{"x" * 256}') == 'ENAMETOOLONG'


def test_very_deep_trees_work(d):
    where = os.open(d, os.O_RDONLY)
    for i in range(300):
        os.mkdir('deep', dir_fd=where)
        below = os.open('deep', os.O_RDONLY | os.O_DIRECTORY, dir_fd=where)
        os.close(where)
        where = below
    os.close(os.open('f', os.O_CREAT | os.O_WRONLY, dir_fd=where))
    assert os.listdir(where) == ['f']
    os.close(where)
    run('rm', '-rf', f'{d}/deep')
    assert os.listdir(d) == []


# ── directories ─────────────────────────────────────────────────────────────────────────────

def test_a_big_directory_is_listed_whole(d):
    names = {f'file-{i:05}' for i in range(3000)}
    for name in names:
        os.close(os.open(f'{d}/{name}', os.O_CREAT | os.O_WRONLY))
    assert sorted(os.listdir(d)) == sorted(names)
    run('bash', '-c', f'test $(ls -l {d} | wc -l) = 3001')
    assert sorted(sh(f'ls -a {d}').split()) == sorted(names | {'.', '..'})


SEEK = r'''
import ctypes, sys
class Dirent(ctypes.Structure):
    _fields_ = [('ino', ctypes.c_ulong), ('off', ctypes.c_long), ('len', ctypes.c_ushort), ('type', ctypes.c_ubyte),
                ('name', ctypes.c_char * 256)]
c = ctypes.CDLL(None)
c.opendir.restype = ctypes.c_void_p
c.readdir.restype = ctypes.POINTER(Dirent)
c.telldir.restype = ctypes.c_long
d = ctypes.c_void_p(c.opendir(sys.argv[1].encode()))
def rest():
    found = []
    while e := c.readdir(d):
        found.append(e.contents.name)
    return found
places = []
while True:
    places.append(c.telldir(d))
    e = c.readdir(d)
    if not e:
        break
    places[-1] = (places[-1], e.contents.name)
whole = [n for _, n in places[:-1]]
assert b'.' in whole and b'..' in whole and len(set(whole)) == len(whole) == 102, whole
for at in [0, 1, 2, 50, 99, 101, 3]:
    c.seekdir(d, ctypes.c_long(places[at][0]))
    assert rest() == whole[at:], at
c.rewinddir(d)
assert rest() == whole
'''


def test_readdir_can_seek(d):
    for i in range(100):
        os.mkdir(f'{d}/n{i}')
    run('python3', '-c', SEEK, d)


def test_removing_while_listing_removes_all(d):
    os.mkdir(f'{d}/x')
    for i in range(2000):
        write(f'{d}/x/f{i}', '')
    with os.scandir(f'{d}/x') as entries:
        for entry in entries:
            os.unlink(entry.path)
    assert os.listdir(f'{d}/x') == []
    run('rm', '-r', f'{d}/x')


def test_a_listing_held_open_sees_what_was_there(d):
    for i in range(10):
        write(f'{d}/f{i}', '')
    fd = os.open(d, os.O_RDONLY)
    try:
        assert len(os.listdir(fd)) == 10
        os.unlink(f'{d}/f0')
        write(f'{d}/g', '')
        assert sorted(os.listdir(fd)) == sorted([f'f{i}' for i in range(1, 10)] + ['g'])
    finally:
        os.close(fd)


def test_listing_tells_the_kinds(d):
    write(f'{d}/file', '')
    os.mkdir(f'{d}/dir')
    os.symlink('x', f'{d}/link')
    os.mkfifo(f'{d}/fifo')
    with os.scandir(d) as entries:
        kinds = {e.name: (e.is_file(follow_symlinks=False), e.is_dir(follow_symlinks=False), e.is_symlink())
                 for e in entries}
    assert kinds == {'file': (True, False, False), 'dir': (False, True, False), 'link': (False, False, True),
                     'fifo': (False, False, False)}


def test_dot_and_dotdot_have_the_right_numbers(d):
    os.makedirs(f'{d}/x/y')
    text = sh(f'ls -ai {d}/x/y')
    numbers = dict(reversed(line.split()) for line in text.splitlines())
    assert int(numbers['.']) == os.stat(f'{d}/x/y').st_ino
    assert os.stat(f'{d}/x/y/..').st_ino == os.stat(f'{d}/x').st_ino
    assert sh(f'cd {d}/x/y && cd .. && pwd -P').strip() == os.path.realpath(f'{d}/x')


# ── attributes ──────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize('mode', [0, 0o400, 0o644, 0o755, 0o777, 0o600, 0o1777, 0o2755, 0o4711])
def test_modes_can_be_set(d, mode):
    write(f'{d}/f', '')
    os.chmod(f'{d}/f', mode)
    assert stat.S_IMODE(os.stat(f'{d}/f').st_mode) == mode
    fd = os.open(f'{d}/f', os.O_RDONLY) if os.geteuid() == 0 or mode & 0o400 else None
    if fd is not None:
        os.fchmod(fd, 0o640)
        os.close(fd)
        assert stat.S_IMODE(os.stat(f'{d}/f').st_mode) == 0o640


@pytest.mark.parametrize('umask', [0, 0o022, 0o077, 0o177])
def test_the_umask_is_honoured(d, umask):
    def make():
        os.umask(umask)
        os.close(os.open(f'{d}/f', os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(f'{d}/d', 0o777)
    in_child(make)
    assert stat.S_IMODE(os.stat(f'{d}/f').st_mode) == 0o666 & ~umask
    assert stat.S_IMODE(os.stat(f'{d}/d').st_mode) == 0o777 & ~umask


@pytest.mark.local("a container has ids of its own, and files are shown as the tenant's")
@pytest.mark.root
def test_owners_can_be_set_by_root(d):
    write(f'{d}/f', '')
    os.symlink('f', f'{d}/l')
    os.chown(f'{d}/f', 12, 34)
    os.lchown(f'{d}/l', 56, 78)
    assert (os.stat(f'{d}/f').st_uid, os.stat(f'{d}/f').st_gid) == (12, 34)
    assert (os.lstat(f'{d}/l').st_uid, os.lstat(f'{d}/l').st_gid) == (56, 78)


@pytest.mark.root
def test_chown_clears_setuid(d):
    write(f'{d}/f', '')
    os.chmod(f'{d}/f', 0o6755)
    os.chown(f'{d}/f', 1, 1)
    assert stat.S_IMODE(os.stat(f'{d}/f').st_mode) == 0o755


@pytest.mark.parametrize('passthrough', ['auto', 'off'])
def test_a_reader_that_asks_for_it_leaves_the_access_time_alone(mount, passthrough):
    s = mount(passthrough=passthrough).session().use()
    write(s / 'f', 'text')
    for more, moved in [(os.O_NOATIME, False), (0, True)]:
        os.utime(s / 'f', (1000, 2000))
        fd = os.open(s / 'f', os.O_RDONLY | more)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.read(fd, 10) == b'text'
        os.close(fd)
        assert (os.stat(s / 'f').st_atime > 1000) == moved


def test_times_can_be_set_to_the_nanosecond(d):
    write(f'{d}/f', 'x')
    os.utime(f'{d}/f', ns=(1_000_000_001, 2_000_000_002))
    st = os.stat(f'{d}/f')
    assert (st.st_atime_ns, st.st_mtime_ns) == (1_000_000_001, 2_000_000_002)
    os.symlink('f', f'{d}/l')
    os.utime(f'{d}/l', ns=(5, 6), follow_symlinks=False)
    assert os.lstat(f'{d}/l').st_mtime_ns == 6
    run('touch', '-d', '1999-12-31 12:00:00', f'{d}/f')
    run('touch', '-r', f'{d}/l', '-h', f'{d}/f')
    assert os.stat(f'{d}/f').st_mtime_ns == 6


def test_changes_move_the_times(d):
    write(f'{d}/f', 'x')
    os.utime(f'{d}/f', ns=(1, 1))
    os.utime(d, ns=(1, 1)) if d.count('/') > 8 else None
    append(f'{d}/f', 'y')
    st = os.stat(f'{d}/f')
    assert st.st_mtime_ns > 1 and st.st_ctime_ns > 1
    before = os.stat(d).st_mtime_ns
    write(f'{d}/g', '')
    wait_for(lambda: os.stat(d).st_mtime_ns >= before)


def test_times_stay_the_same_until_something_changes(fresh):
    write(fresh / 'f', 'x')
    below = f'{fresh.daemon.basedir}/{os.path.dirname(fresh.names)}/f'
    first = os.stat(fresh / 'f').st_mtime_ns
    for i in range(100):
        assert read(fresh / 'f') == 'x'
        assert os.stat(fresh / 'f').st_mtime_ns == first == os.stat(below).st_mtime_ns
        if i % 20 == 0:
            fresh.ctl('close')
    write(below, 'y')
    os.utime(below, ns=(7, 7))
    wait_for(lambda: os.stat(fresh / 'f').st_mtime_ns == 7, 20)


def test_extended_attributes_work(d):
    write(f'{d}/f', '')
    os.mkdir(f'{d}/dir')
    for name in ['f', 'dir']:
        path = f'{d}/{name}'
        assert os.listxattr(path) == []
        os.setxattr(path, 'user.a', b'1')
        os.setxattr(path, 'user.b', b'\0' * 1000)
        assert errno_of(os.setxattr, path, 'user.a', b'2', os.XATTR_CREATE) == 'EEXIST'
        assert errno_of(os.setxattr, path, 'user.c', b'2', os.XATTR_REPLACE) == 'ENODATA'
        assert sorted(os.listxattr(path)) == ['user.a', 'user.b']
        assert os.getxattr(path, 'user.a') == b'1'
        os.setxattr(path, 'user.a', b'longer')
        assert os.getxattr(path, 'user.a') == b'longer'
        os.removexattr(path, 'user.a')
        assert errno_of(os.getxattr, path, 'user.a') == 'ENODATA'
        assert errno_of(os.removexattr, path, 'user.a') == 'ENODATA'
    fd = os.open(f'{d}/f', os.O_RDONLY)
    os.setxattr(fd, 'user.fd', b'x')
    assert os.getxattr(fd, 'user.fd') == b'x'
    os.close(fd)


def test_statfs_answers(d):
    st = os.statvfs(d)
    assert st.f_blocks > 0 and st.f_namemax == 255


def test_access_answers_by_the_modes(d):
    write(f'{d}/f', '')
    os.chmod(f'{d}/f', 0o644)
    assert os.access(f'{d}/f', os.R_OK) and not os.access(f'{d}/f', os.X_OK)
    assert not os.access(f'{d}/none', os.F_OK)


# ── special files and locks ─────────────────────────────────────────────────────────────────

def test_fifos_work_between_processes(d):
    os.mkfifo(f'{d}/p')
    assert sh(f'(echo through > {d}/p) & cat {d}/p; wait') == 'through\n'


def test_unix_sockets_work(d):
    def talk():
        os.chdir(d)
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind('sock')
            server.listen(1)
            client.connect('sock')
            other, _ = server.accept()
            other.send(b'hi')
            other.close()
            return client.recv(10)
    assert in_child(talk) == b'hi'
    assert stat.S_ISSOCK(os.stat(f'{d}/sock').st_mode)


def test_o_tmpfile_gives_a_nameless_file_or_says_that_it_cannot(d):
    try:
        fd = os.open(d, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as e:
        assert e.errno == errno.EOPNOTSUPP
        return
    os.write(fd, b'x')
    assert os.listdir(d) == []
    where = os.open(d, os.O_RDONLY)
    os.link(f'/proc/self/fd/{fd}', f'{d}/f', src_dir_fd=where)  # so that the link of /proc is followed
    os.close(where)
    os.close(fd)
    assert read(f'{d}/f') == 'x'


def test_locks_exclude_other_processes(d):
    write(f'{d}/f', '')

    def try_lock(kind):
        with open(f'{d}/f', 'r+b') as f:
            return errno_of(kind, f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for kind in [fcntl.flock, fcntl.lockf]:
        with open(f'{d}/f', 'r+b') as f:
            kind(f, fcntl.LOCK_EX)
            assert in_child(lambda k=kind: try_lock(k)) in ('EAGAIN', 'EACCES')
            kind(f, fcntl.LOCK_UN)
            assert in_child(lambda k=kind: try_lock(k)) is None


def test_a_lock_goes_with_its_descriptor(d):
    write(f'{d}/f', '')

    def try_lock():
        with open(f'{d}/f', 'r+b') as f:
            return errno_of(fcntl.lockf, f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(f'{d}/f', 'r+b') as f:
        fcntl.lockf(f, fcntl.LOCK_EX)
    wait_for(lambda: in_child(try_lock) is None)


def test_sqlite_works_in_every_journal_mode(d):
    for mode in ['delete', 'truncate', 'persist', 'wal']:
        run('sqlite3', f'{d}/{mode}.db', f'pragma journal_mode={mode}; create table t(a); insert into t values(1),(2);')
        run('sqlite3', f'{d}/{mode}.db', 'begin; insert into t values(3); commit; pragma integrity_check;')
        assert run('sqlite3', f'{d}/{mode}.db', 'select sum(a) from t; pragma integrity_check').split() == ['6', 'ok']


# ── many ────────────────────────────────────────────────────────────────────────────────────

def test_many_files_can_be_open_at_once(d):
    def many():
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        n = min(hard - 50, 3000)
        fds = [os.open(f'{d}/f{i}', os.O_RDWR | os.O_CREAT) for i in range(n)]
        for i, fd in enumerate(fds):
            os.write(fd, str(i).encode())
        good = all(os.pread(fd, 10, 0) == str(i).encode() for i, fd in enumerate(fds))
        for fd in fds:
            os.close(fd)
        return good, n
    good, n = in_child(many, 100)
    assert good and n > 500
    assert len(os.listdir(d)) == n


@pytest.mark.concurrency
def test_threads_that_work_in_their_own_directories_do_not_disturb_each_other(fresh):
    fresh.use()
    failures = []

    def work(n):
        try:
            where = fresh / f'd{n}'
            os.mkdir(where)
            for i in range(60):
                write(f'{where}/f', f'{n}-{i}')
                os.rename(f'{where}/f', f'{where}/g{i}')
                assert read(f'{where}/g{i}') == f'{n}-{i}'
            assert len(os.listdir(where)) == 60
        except (OSError, AssertionError) as e:
            failures.append(e)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []


# ── tools ───────────────────────────────────────────────────────────────────────────────────

@pytest.fixture
def sample(top):
    """A tree with everything that a copy may lose."""
    path = tempfile.mkdtemp(dir=top)
    sh(f'''cd {path} && mkdir -p a/b/c "with space" && echo 1 > a/one && echo 2 > a/b/two && ln a/one a/b/hard &&
           ln -s ../one a/b/soft && chmod 750 a/b && chmod 400 a/b/two && touch -d 2001-02-03 a/one &&
           truncate -s 1M a/sparse && echo x > "with space/-file" && mkfifo a/pipe && : > a/empty &&
           head -c 300000 /dev/urandom > a/big''')
    yield path
    shutil.rmtree(path)


COPIES = {
    'cp -a': 'cp -a {src}/. {dst}/',
    'tar': 'tar --format=posix -C {src} -cf - . | tar -C {dst} -xpf -',
    'rsync -aH': 'rsync -aH {src}/ {dst}/',
    'tar out of a session': 'cp -a {src}/. {dst}/mid; mkdir {dst}/x; tar --format=posix -C {dst}/mid -cf - . | tar -C {dst}/x -xpf -; '
                            'rm -r {dst}/mid; mv {dst}/x/* {dst}; rmdir {dst}/x',
}


@pytest.mark.parametrize('tool', COPIES)
def test_a_tree_copied_in_is_the_same_tree(fresh, sample, tool):
    if tool.startswith('rsync') and not shutil.which('rsync'):
        pytest.skip('no rsync here')
    if 'mid' in COPIES[tool]:
        os.mkdir(fresh / 'mid')
    sh(COPIES[tool].format(src=sample, dst=fresh.path))
    assert tree(fresh.path) == tree(sample)
    times = {n: os.lstat(fresh / n).st_mtime_ns for n in ['a/one', 'a/b/two', 'a/big']}
    assert times == {n: os.lstat(f'{sample}/{n}').st_mtime_ns for n in times}


def test_what_is_written_through_the_mount_lies_on_the_disk_below(fresh, sample):
    run('cp', '-a', f'{sample}/.', fresh.path)
    below = f'{fresh.daemon.basedir}/{os.path.dirname(fresh.names)}'
    assert tree(below) == tree(sample)


def test_what_is_changed_below_is_seen_within_a_second_or_two(fresh):
    write(fresh / 'f', '1')
    below = f'{fresh.daemon.basedir}/{os.path.dirname(fresh.names)}'
    assert read(fresh / 'f') == '1'
    assert errno_of(os.stat, fresh / 'new') == 'ENOENT'
    write(f'{below}/f', '22')
    write(f'{below}/new', 'x')
    wait_for(lambda: read(fresh / 'f') == '22' and os.path.exists(fresh / 'new'), 30)


@pytest.mark.parametrize('editor', ['sed -i s/1/2/ {f}', 'perl -pi -e s/1/2/ {f}',
                                    'python3 -c "import os;open(\'{f}.n\',\'w\').write(\'2\\n\');os.replace(\'{f}.n\',\'{f}\')"',
                                    'dd of={f} conv=notrunc bs=1 count=1 status=none <<< 2',
                                    'printf "2\\n" > {f}'])
def test_files_can_be_edited_in_place(d, editor):
    write(f'{d}/f', '1\n')
    sh(editor.format(f=f'{d}/f'))
    assert read(f'{d}/f') == '2\n'
    assert os.listdir(d) == ['f']


def test_a_linker_can_write_its_output(d):
    for i in range(3):
        write(f'{d}/m{i}.c', f'int f{i}(void) {{ return {i}; }}\n')
    write(f'{d}/main.c', 'int f0(void),f1(void),f2(void);\nint main(void){return f0()+f1()+f2()-3;}\n')
    run('gcc', '-g', '-o', f'{d}/prog', *(f'{d}/{n}.c' for n in ['m0', 'm1', 'm2', 'main']))
    run(f'{d}/prog')


def test_dd_can_write_in_the_middle(d):
    sh(f'head -c 100000 /dev/zero > {d}/f; printf abc | dd of={d}/f bs=1 seek=50000 conv=notrunc status=none')
    data = open(f'{d}/f', 'rb').read()
    assert len(data) == 100000 and data[50000:50003] == b'abc'


def test_inotify_watchers_see_changes_made_through_the_mount(fresh):
    fresh.use()
    watcher = fresh.daemon.popen('inotifywait', '-m', '-q', '--format', '%e %f', fresh.path, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: 'anon_inode:inotify' in descriptors_of(watcher.pid) and
             'inotify wd' in sh(f'cat /proc/{watcher.pid}/fdinfo/* || :'))
    write(fresh / 'f', 'x')
    assert watcher.stdout.readline() == 'CREATE f\n'
