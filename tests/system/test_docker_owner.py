# SPDX-License-Identifier: Apache-2.0
"""Whose the files are where the sandbox has user ids of its own: the tenant on the host and the users of a container
change each other's files, and nobody gives any away."""

import os
import stat

import pytest

from harness import BOB_GID, BOB_UID, HOST_BIND, HOST_IMAGE, as_user, errno_of, read, run, wait_for, write
from jobs import ordinary, output
from jobs import run as run_job

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

UID, GID = 1001, 1002
WORKER = 1234
USER = f'[user alice]\nuid = {UID}\ngid = {GID}\n'


@pytest.fixture(name='tenant')
def _tenant(docker):
    """tenant(user=…): a session of a tenant who is not root, in containers with this machine's programs."""
    def make(user=None, **opts):
        as_whom = f'user = {user}\n' if user else ''
        d = docker(image=HOST_IMAGE, config=f'{USER}[sandbox]\nbind = {HOST_BIND}\n{as_whom}', allow_other=True, **opts)
        return d.session()
    return make


def by_tenant(function):
    return as_user(UID, GID, function)


def on_disk(s, name=''):
    st = os.lstat(f'{s.daemon.basedir}/alice/coder/{name}')
    return st.st_uid, st.st_gid


def shown(s, name=''):
    st = os.lstat(s / name)
    return st.st_uid, st.st_gid


def ready(s):
    os.listdir(s.path)
    wait_for(lambda: s.state() != 'provisioning', 60)
    assert s.state() == 'ready', s.error()
    return s


# ── what either side wrote ──────────────────────────────────────────────────────────────────

@pytest.mark.parametrize('user', [None, '1234', '1234:77', 'worker'])
def test_the_tenant_changes_what_a_job_made(tenant, user):
    s = tenant(user)
    output(s, 'umask 077; mkdir -p node_modules/.bin; echo old > node_modules/.bin/x; chmod 700 node_modules/.bin/x; '
              'ln -s x node_modules/.bin/l; echo gone > node_modules/gone; mkfifo node_modules/p')
    inside = (WORKER, 77) if user == '1234:77' else (WORKER, WORKER) if user else (0, 0)

    def work():
        bin = s / 'node_modules/.bin'
        assert read(f'{bin}/x') == 'old\n'
        os.chmod(f'{bin}/x', 0o644)
        os.rename(f'{bin}/x', f'{bin}/y')
        write(f'{bin}/y', 'new\n')
        with open(f'{bin}/y', 'a', encoding='ascii') as f:
            f.write('more\n')
        os.utime(f'{bin}/y', (1000, 2000))
        os.setxattr(f'{bin}/y', 'user.mark', b'1')
        os.truncate(f'{bin}/y', 4)
        os.utime(f'{bin}/y', ns=(10**12, 2 * 10**12 + 5))
        os.unlink(s / 'node_modules/gone')
        os.unlink(s / 'node_modules/p')
        os.unlink(f'{bin}/l')
        os.chmod(bin, 0o700)
        os.rename(s / 'node_modules', s / 'moved')
        return [stat.S_IMODE(os.stat(s / 'moved/.bin/y').st_mode), os.stat(s / 'moved/.bin/y').st_mtime_ns,
                os.getxattr(s / 'moved/.bin/y', 'user.mark'), read(s / 'moved/.bin/y')]
    assert by_tenant(work) == [0o644, 2 * 10**12 + 5, b'1', 'new\n']
    assert shown(s, 'moved/.bin/y') == (UID, GID)
    assert on_disk(s, 'moved/.bin/y') == inside
    assert output(s, 'cat moved/.bin/y; stat -c %u:%g:%a moved/.bin/y; stat -c %.9Y moved/.bin/y', 'look') == \
        f'new\n{inside[0]}:{inside[1]}:644\n2000.000000005\n'


@pytest.mark.parametrize('user', [None, '1234', 'worker'])
def test_a_job_changes_what_the_tenant_made(tenant, user):
    s = tenant(user)

    def make():
        os.umask(0o077)
        os.makedirs(s / 'd/e')
        for name in ['d/e/f', 'd/replaced', 'd/removed', 'd/linked', 'edited']:
            write(s / name, 'outside\n')
        os.symlink('f', s / 'd/e/l')
        os.mkfifo(s / 'd/p')
        os.utime(s / 'd/linked', ns=(1, 10**18 + 1))
    by_tenant(make)
    script = ('set -e; id -u; echo inside > d/new; mv d/new d/replaced; rm d/removed d/p d/e/l; echo more >> edited; '
              'chmod 755 d d/e/f; ln d/linked d/second; touch -d @5 d/e/f; mkdir d/e/dir; mv d/e d/moved; '
              'stat -c %.9Y d/linked')
    assert output(s, script) == f'{WORKER if user else 0}\n1000000000.000000001\n'

    def look():
        return [read(s / 'd/replaced'), read(s / 'edited'), os.stat(s / 'd/second').st_nlink, os.path.samefile(s / 'd/second', s / 'd/linked'),
                os.stat(s / 'd/moved/f').st_mtime, sorted(os.listdir(s / 'd'))]
    assert by_tenant(look) == ['inside\n', 'outside\nmore\n', 2, True, 5, ['linked', 'moved', 'replaced', 'second']]


@pytest.mark.parametrize('user', ['1234', 'worker'])
def test_what_is_made_before_the_first_container_is_the_jobs_user_s_too(tenant, user):
    s = tenant(user, provision='jobs')
    by_tenant(lambda: (os.makedirs(s / 'a/b'), write(s / 'a/b/f', 'x'), os.chmod(s / 'a/b/f', 0o600), os.symlink('f', s / 'a/b/l')) and None)
    assert s.state() != 'provisioning'
    assert output(s, 'echo y > a/b/f; mv a/b/f a/g; rm a/b/l; stat -c %u . a a/g') == f'{WORKER}\n' * 3
    assert by_tenant(lambda: read(s / 'a/g')) == 'y\n'
    assert on_disk(s, 'a')[0] == WORKER


def test_however_deep_it_lies_it_is_the_jobs_user_s(tenant):
    s = tenant('worker', provision='jobs')
    deep = '/'.join('d' * 700)

    def make():
        for i in range(1, len(deep) + 1, 2):
            os.mkdir(s / deep[:i])
        write(s / f'{deep}/f', 'x')
    by_tenant(make)
    assert output(s, f'cd {deep} && echo y >> f && stat -c %u . f') == f'{WORKER}\n' * 2


def test_giving_files_away_goes_on_where_it_was_interrupted(tenant):
    """As a guest that was killed leaves it: the uppermost directory is given last."""
    s = tenant('worker', provision='jobs')
    by_tenant(lambda: (os.makedirs(s / 'a/b'), os.mkdir(s / 'c'), write(s / 'a/b/f', 'x'), write(s / 'c/f', 'x')) and None)
    for name in ('a', 'a/b'):
        os.chown(f'{s.daemon.basedir}/alice/coder/{name}', WORKER, WORKER)
    assert on_disk(s) == (0, 0)
    assert output(s, 'stat -c %u . a a/b a/b/f c c/f') == f'{WORKER}\n' * 6


def test_a_user_who_is_set_later_gets_what_was_there(tenant, docker):
    s = tenant()
    output(s, 'mkdir -m 700 d; echo x > d/f; chmod 600 d/f')
    s.ctl('close')
    s.daemon.set_config(s.daemon.config.replace('bind =', 'user = 1234\nbind ='))
    s.daemon.restart()
    assert output(s, 'id -u; echo y >> d/f; cat d/f', 'k') == '1234\nx\ny\n'


def test_what_is_made_in_a_directory_belongs_to_whoever_has_the_directory(tenant):
    s = tenant('worker')
    output(s, 'mkdir -m 755 roots; touch roots/f', user='root')
    by_tenant(lambda: (write(s / 'roots/g', 'x'), write(s / 'h', 'x')) and None)
    assert output(s, 'stat -c %u . roots roots/f roots/g h', 'k') == '1234\n0\n0\n0\n1234\n'


def test_a_mount_of_root_alone_serves_root(docker):
    s = docker(config='[sandbox]\nuser = worker\n').session()
    output(s, 'mkdir -m 700 d; echo x > d/f')
    assert shown(s, 'd/f') == (0, 0)
    write(s / 'd/g', 'y')
    os.chmod(s / 'd/f', 0o600)
    assert output(s, 'cat d/f d/g; echo z > d/g', 'k') == 'x\ny'
    assert read(s / 'd/g') == 'z\n'


def test_owner_native_shows_the_ids_that_the_container_wrote(tenant):
    s = tenant(owner='native')
    output(s, 'echo x > f; chown 7:8 f')
    assert shown(s, 'f') == (7, 8)


def test_chown_to_oneself_succeeds_and_to_others_does_not(tenant):
    s = tenant()
    output(s, 'echo x > f; chown 7:8 f')
    assert by_tenant(lambda: errno_of(os.chown, s / 'f', UID, GID)) is None
    assert by_tenant(lambda: errno_of(os.chown, s / 'f', 0, -1)) == 'EPERM'
    os.chown(s / 'f', 0, 0)
    assert on_disk(s, 'f') == (7, 8)


def test_other_users_of_the_host_get_nowhere(tenant):
    s = tenant()
    output(s, 'umask 0; mkdir open; echo x > open/f')
    assert as_user(BOB_UID, BOB_GID, lambda: errno_of(os.listdir, s.path)) == 'EACCES'
    assert as_user(BOB_UID, BOB_GID, lambda: errno_of(os.stat, f'{s.daemon.basedir}/alice')) == 'EACCES'
    assert by_tenant(lambda: errno_of(os.stat, f'{s.daemon.basedir}/alice')) == 'EACCES'


# ── setuid ──────────────────────────────────────────────────────────────────────────────────

def test_setuid_bits_are_the_job_users_alone(tenant):
    s = tenant('worker')
    output(s, 'mkdir -m 777 roots; touch roots/f; chmod 666 roots/f', user='root')

    def work():
        assert errno_of(os.chmod, s / 'roots/f', 0o4755) == 'EPERM'
        assert errno_of(os.chmod, s / 'roots/f', 0o2755) == 'EPERM'
        os.close(os.open(s / 'roots/made', os.O_CREAT | os.O_WRONLY, 0o6755))
        os.close(os.open(s / 'made', os.O_CREAT | os.O_WRONLY, 0o6755))
        write(s / 'own', 'x')
        os.chmod(s / 'own', 0o6755)
    by_tenant(work)
    assert output(s, 'stat -c %u:%a roots/f roots/made made own', 'k') == '0:666\n0:755\n1234:6755\n1234:6755\n'


def test_a_setuid_file_of_containers_root_is_without_effect_on_the_host(tenant):
    s = tenant()
    d = s.daemon
    d.set_config(d.config.replace(USER, USER + 'mode = 0755\n'))
    d.restart()
    output(s, 'cp /usr/bin/id id; chmod 6755 id')
    assert on_disk(s, 'id') == (0, 0)
    assert stat.S_IMODE(os.stat(s / 'id').st_mode) == 0o6755
    assert as_user(BOB_UID, BOB_GID, lambda: run(s / 'id', '-u')).strip() == str(BOB_UID)
    assert by_tenant(lambda: run(s / 'id', '-u')).strip() == str(UID)
    assert as_user(BOB_UID, BOB_GID, lambda: errno_of(os.stat, f'{d.basedir}/alice/coder/id')) == 'EACCES'
    for path in ['', '/alice', '/.wsmfs', '/.wsmfs/run']:
        st = os.stat(d.basedir + path)
        assert (st.st_uid, stat.S_IMODE(st.st_mode)) == (0, 0o700), path


# ── tools ───────────────────────────────────────────────────────────────────────────────────

GIT = ('export HOME=$PWD/home; mkdir -p home; git config --global user.email a@b; git config --global user.name a; '
       'git config --global init.defaultBranch main; ')


@pytest.mark.parametrize('user', [None, 'worker'])
def test_git_works_from_both_sides_in_one_repository(tenant, user):
    s = tenant(user)
    ready(s)
    by_tenant(lambda: run('sh', '-ec', GIT + 'mkdir r; cd r; git init -q; echo 1 > f; git add f; git commit -qm one', cwd=s.path))
    output(s, 'set -e; ' + GIT + 'cd r; git status --porcelain; echo 2 >> f; git commit -qam two; git gc -q; git checkout -qb side')
    log = by_tenant(lambda: run('sh', '-ec', GIT + 'cd r; git status --porcelain; echo 3 >> f; git commit -qam three; '
                                'git branch -D main; git log --format=%s', cwd=s.path))
    assert log.split() == ['Deleted', 'branch', 'main', '(was', log.split()[4], 'three', 'two', 'one']
    assert output(s, GIT + 'cd r; git fsck --strict && git log --format=%s', 'k').split() == ['three', 'two', 'one']


@pytest.mark.parametrize('user', [None, 'worker'])
def test_tar_and_cp_and_rsync_work_in_both_directions(tenant, user):
    s = tenant(user)
    make = ('set -e; umask 077; mkdir -p {0}/bin; echo {0} > {0}/f; ln {0}/f {0}/hard; ln -s ../f {0}/bin/x; chmod 750 {0}; '
            'touch -d @1000000000.5 {0}/f')
    copy = ('set -e; tar -cf {1}.tar {0}; mkdir {1}; tar -xpf {1}.tar -C {1}; cp -a {0} {1}/cp; diff -r --no-dereference {0} {1}/{0}; '
            'test "$(stat -c %Y.%a.%h {0}/f)" = "$(stat -c %Y.%a.%h {1}/{0}/f)"; rm -r {0} {1} {1}.tar')
    sync = 'set -e; rsync -a --delete {0}/ {1}/; rsync -a --delete --itemize-changes {0}/ {1}/'
    output(s, make.format('made'), 'a')
    assert by_tenant(lambda: run('sh', '-c', sync.format('made', 'synced'), cwd=s.path)) == ''
    by_tenant(lambda: run('sh', '-c', copy.format('made', 'copied'), cwd=s.path))
    by_tenant(lambda: run('sh', '-c', make.format('out'), cwd=s.path))
    assert output(s, sync.format('out', 'synced'), 'b') == ''
    output(s, copy.format('out', 'copied'), 'c')
    by_tenant(lambda: run('rm', '-r', 'synced', cwd=s.path))
    assert os.listdir(s.path) == []


def test_root_on_the_mount_unpacks_what_belongs_to_others(tenant):
    """As tar and rsync of root do: ids are asked for, and are the tenant's."""
    s = tenant('worker')
    ready(s)
    os.mkdir(s.daemon.top + '/src')
    write(s.daemon.top + '/src/f', 'x')
    os.chown(s.daemon.top + '/src/f', 33, 44)
    run('sh', '-c', f'tar -C {s.daemon.top} -c src | tar -xp --same-owner && rsync -a {s.daemon.top}/src/ copy/', cwd=s.path)
    assert output(s, 'stat -c %u src src/f copy copy/f; echo y > copy/f') == '1234\n' * 4


# ── ordinary users ──────────────────────────────────────────────────────────────────────────

@pytest.fixture(name='own')
def _own(mount, engine):
    """The mount of an ordinary user who may use root's engine."""
    mode = stat.S_IMODE(os.stat(engine.top).st_mode)
    os.chmod(engine.top, 0o711)
    os.chmod(engine.socket, 0o666)
    with ordinary(mount) as d:
        d.source = f'docker:{HOST_IMAGE}'
        d.opts.update(basedir=d.basedir)
        d.set_config(f'[sandbox]\nbind = {HOST_BIND}\n[backend docker]\nhost = {engine.host}\n')
        yield d
        d.stop()
    os.chmod(engine.top, mode)
    for container in engine.containers():
        engine('rm', '-f', container, check=False)


def by_bob(function):
    return as_user(BOB_UID, BOB_GID, function, timeout=120)


def test_in_an_ordinary_users_containers_jobs_run_as_that_user(own):
    s = own.start().session()

    def work():
        write(s / 'f', 'outside\n')
        assert output(s, 'id -u; id -g; mkdir -m 700 d; cat f > d/g; rm f; chmod 600 d/g') == f'{BOB_UID}\n{BOB_GID}\n'
        assert read(s / 'd/g') == 'outside\n'
        os.rename(s / 'd/g', s / 'g')
        os.rmdir(s / 'd')
        assert run_job(s, 'id', 'as-root', user='root')[0] != '0'
        s.ctl('close')
        assert output(s, 'cat g', 'again') == 'outside\n'
        s.ctl('destroy')
    by_bob(work)


def test_an_ordinary_users_jobs_can_be_nobody_else(own):
    own.set_config(own.config.replace('bind =', 'user = worker\nbind ='))
    own.expect('user of section')
    s = own.start().session()

    def work():
        write(s / 'f', 'x')
        assert errno_of(s.ctl, 'provision') == 'EINVAL'
        assert 'user of section [sandbox]' in s.error()
        assert read(s / 'f') == 'x'
    by_bob(work)
