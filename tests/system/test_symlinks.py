# SPDX-License-Identifier: Apache-2.0
"""A symbolic link in a workspace never leads a program on the mount out of it."""

import os
import shutil

import pytest

from harness import errno_of, read, run, sh, write


@pytest.fixture
def planted(fresh):
    """plant(place, target): makes a link on the disk below, as an agent in a sandbox could."""
    fresh.use()
    below = f'{fresh.daemon.basedir}/{os.path.dirname(fresh.names)}'

    def plant(place, target):
        os.makedirs(os.path.dirname(f'{below}/{place}'), exist_ok=True)
        os.symlink(target, f'{below}/{place}')
    plant.below = below
    plant.s = fresh
    return plant


OUTWARD = {  # where the link lies, what it says on the disk → what is read through the mount
    ('l', '/etc/shadow'): '.wsm/root/etc/shadow',
    ('d/l', '/etc/shadow'): '../.wsm/root/etc/shadow',
    ('d/e/l', '/'): '../../.wsm/root',
    ('l', '../../../../../../../../etc/shadow'): '.wsm/root/etc/shadow',
    ('l', '/proc/self/root/etc/passwd'): '.wsm/root/proc/self/root/etc/passwd',
    ('l', '/workspace/../etc/shadow'): '.wsm/root/etc/shadow',
}
INWARD = {
    ('l', '/workspace/f'): 'f', ('d/l', '/workspace/f'): '../f', ('d/e/l', '/workspace/d/g'): '../../d/g',
    ('l', 'f'): 'f', ('d/l', '../f'): '../f', ('d/e/l', '../../f'): '../../f', ('l', 'd/g'): 'd/g', ('l', './f'): './f',
}


@pytest.mark.parametrize('place, target', OUTWARD)
def test_a_link_that_leads_out_is_given_as_one_into_the_sandboxs_own_root(planted, place, target):
    planted(place, target)
    path = planted.s / place
    assert os.readlink(path) == OUTWARD[place, target]
    assert os.lstat(path).st_size == len(os.readlink(path))
    assert errno_of(read, path) in ('ENOENT', 'EACCES', 'EISDIR')


@pytest.mark.parametrize('place, target', INWARD)
def test_a_link_that_stays_inside_works(planted, place, target):
    write(f'{planted.below}/f', 'inside')
    os.makedirs(f'{planted.below}/d', exist_ok=True)
    write(f'{planted.below}/d/g', 'inside')
    planted(place, target)
    path = planted.s / place
    assert os.readlink(path) == INWARD[place, target]
    assert os.lstat(path).st_size == len(os.readlink(path))
    assert read(path) == 'inside'


def test_a_parent_step_behind_a_name_that_is_itself_a_link_does_not_lead_out(shared_daemon, planted):
    agent = os.path.dirname(os.path.dirname(planted.s.names))
    other = shared_daemon.session(f'{agent}/other/s1')
    write(other / 'secret', 'x')
    planted('e', '../../..')
    for target in ['e/../other/secret', 'e/other/s1/secret', f'e/{agent}/other/s1/secret', 'e/./../../other/s1/secret',
                   '../../other/s1/secret', '../../../' + other.names + '/secret']:
        planted('z', target)
        assert errno_of(read, planted.s / 'z') is not None, target
        os.unlink(f'{planted.below}/z')


@pytest.mark.parametrize('target', ['/etc/passwd', '../../../../../etc/passwd', 'd/../../../x', 'x' * 4000, '/' + 'y/' * 1000,
                                    'l/../x', 'd/l/../../no/../x', '/workspace', '/workspace/', '.', '..', '../..',
                                    '/dev/null', 'a//b/./c', '日本', b'\xff\xfe', ' ', '/.wsm/state', '.wsm/state'], ids=ascii)
def test_readlink_never_fails_for_a_link_that_can_be_seen(planted, target):
    planted('l', target)
    planted('d/l', target)
    for name in ['l', 'd/l']:
        st = os.lstat(planted.s / name)
        assert st.st_size == len(os.readlink(os.fsencode(planted.s / name)))


def test_a_moved_link_is_given_for_its_new_depth(planted):
    s = planted.s
    write(s / 'f', 'inside')
    os.makedirs(s / 'a/b')
    planted('in', '/workspace/f')
    planted('out', '/etc/passwd')
    for place, up in [('a/b/', '../../'), ('a/', '../'), ('', '')]:
        for name in ['in', 'out']:
            current = next(p for p in ['', 'a/', 'a/b/'] if os.path.lexists(s / f'{p}{name}'))
            os.rename(s / f'{current}{name}', s / f'{place}{name}')
        assert os.readlink(s / f'{place}in') == f'{up}f'
        assert read(s / f'{place}in') == 'inside'
        assert os.readlink(s / f'{place}out') == f'{up}.wsm/root/etc/passwd'


def test_a_hard_linked_link_is_given_for_each_of_its_places(planted):
    s = planted.s
    write(s / 'f', 'inside')
    os.mkdir(s / 'd')
    planted('l', '/workspace/f')
    os.link(s / 'l', s / 'd/l', follow_symlinks=False)
    assert os.readlink(s / 'l') == 'f' and os.readlink(s / 'd/l') == '../f'
    assert read(s / 'l') == read(s / 'd/l') == 'inside'


def test_a_link_to_an_absolute_path_of_the_own_session_works_inside_and_outside(planted):
    s = planted.s
    write(s / 'f', 'inside')
    os.mkdir(s / 'd')
    os.symlink(s / 'f', s / 'd/l')
    assert read(s / 'd/l') == 'inside'
    assert os.readlink(f'{planted.below}/d/l') in ('/workspace/f', '../f')


def test_a_given_link_that_is_made_again_means_the_same(planted):
    """As tar and cp -a do it."""
    s = planted.s
    planted('l', '/usr/bin/env')
    run('cp', '-a', s / 'l', s / 'copy')
    os.mkdir(s / 'd')
    run('cp', '-a', s / 'l', s / 'd/copy')
    sh(f'cd {s.path} && tar -cf t.tar l && mkdir x && tar -xf t.tar -C x')
    assert os.readlink(f'{planted.below}/copy') == '/usr/bin/env'
    assert os.readlink(s / 'copy') == '.wsm/root/usr/bin/env'


def test_git_add_tar_and_rsync_take_outward_links_without_an_error(planted):
    s = planted.s
    planted('l', '/etc/passwd')
    planted('d/m', '../../../../etc')
    sh(f'cd {s.path} && git init -q . && git add -A && tar -cf /dev/null l d')
    if shutil.which('rsync'):
        sh(f'rsync -a {s.path}/d/ {s.path}/copy/')


def test_the_last_component_is_never_followed_by_changes(planted):
    s = planted.s
    outside = f'{s.daemon.top}/outside-{os.path.basename(os.path.dirname(os.path.dirname(s.path)))}'
    write(outside, 'precious')
    os.chmod(outside, 0o600)
    planted('l', outside)
    for change in [lambda: write(s / 'l', 'spoilt'), lambda: os.chmod(s / 'l', 0o777), lambda: os.truncate(s / 'l', 0),
                   lambda: os.link(s / 'l', s / 'hard', follow_symlinks=True), lambda: os.utime(s / 'l', (1, 1)),
                   lambda: os.setxattr(s / 'l', 'user.x', b'1'), lambda: os.listdir(s / 'l')]:
        errno_of(change)
    assert read(outside) == 'precious'
    assert os.stat(outside).st_mode & 0o777 == 0o600
    os.unlink(s / 'l')
    assert read(outside) == 'precious'


def test_a_directory_swapped_for_a_link_on_the_disk_is_no_way_out(planted):
    s = planted.s
    os.makedirs(s / 'd/e')
    write(s / 'd/e/f', 'inside')
    outside = f'{s.daemon.top}/outside-dir-{s.names.split("/", maxsplit=1)[0]}'
    os.makedirs(f'{outside}/e')
    write(f'{outside}/e/f', 'secret')
    fd = os.open(s / 'd/e', os.O_RDONLY)
    try:
        os.rename(f'{planted.below}/d', f'{planted.below}/old')
        os.symlink(outside, f'{planted.below}/d')
        for _ in range(50):
            try:
                assert read(s / 'd/e/f') == 'inside'
            except OSError:
                pass
    finally:
        os.close(fd)


def test_raw_links_are_served_as_they_are(mount):
    daemon = mount(symlinks='raw')
    s = daemon.session().use()
    for target in ['/etc/passwd', '../../x', '/workspace/f']:
        os.symlink(target, s / 'l')
        assert os.readlink(s / 'l') == target
        assert os.readlink(f'{daemon.basedir}/alice/coder/l') == target
        os.unlink(s / 'l')


def test_anchored_links_are_absolute_paths_below_the_mount(mount):
    daemon = mount(symlinks='anchored')
    s = daemon.session().use()
    below = f'{daemon.basedir}/alice/coder'
    write(s / 'f', 'inside')
    os.mkdir(s / 'd')
    for place, target, given in [('d/a', '../f', s / 'f'), ('d/b', '/workspace/f', s / 'f'), ('c', 'f', 'f'),
                                 ('e', '/etc/passwd', s / '.wsm/root/etc/passwd')]:
        os.symlink(target, f'{below}/{place}')
        assert os.readlink(s / place) == given
    assert read(s / 'd/a') == read(s / 'd/b') == read(s / 'c') == 'inside'


def test_two_sessions_of_different_depths_each_get_the_link_for_their_own_place(mount):
    daemon = mount()
    a, b = daemon.session('alice/coder/s1').use(), daemon.session('alice/coder/s2').use()
    os.symlink('/etc/passwd', f'{daemon.basedir}/alice/coder/l')
    assert os.readlink(a / 'l') == os.readlink(b / 'l') == '.wsm/root/etc/passwd'
