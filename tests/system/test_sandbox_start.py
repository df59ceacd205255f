# SPDX-License-Identifier: Apache-2.0
"""How local sandboxes are started, what is refused and in which words, the host's paths that are
bound, jobs that are not confined, and limits."""

import os
import signal
import subprocess

import pytest

import sandboxes
from harness import Child, wait_for
from sandboxes import (MAPPED_ID, TENANT_GROUP, TENANT_ID, USER_ID, Box, Refused, ended, group_directory, kill_quietly,
                       processes_with)

pytestmark = [pytest.mark.root]


@pytest.fixture(scope='module')
def programs(top):
    place = f'{top}/sandbox-programs-2'
    os.mkdir(place, 0o755)
    return sandboxes.compile_all(place)


def make_box(programs, workdir, **how):
    b = Box(programs, workdir, **how)
    b.need_mapped_owners()
    yield b
    b.finish()


@pytest.fixture
def roots(programs, workdir):
    yield from make_box(programs, workdir)


@pytest.fixture
def tenants(programs, workdir):
    yield from make_box(programs, workdir, tenant=f'{TENANT_ID}:{TENANT_ID}')


@pytest.fixture
def users(programs, workdir):
    yield from make_box(programs, workdir, uid=USER_ID)


@pytest.fixture(params=['roots', 'tenants', 'users'])
def box(request):
    return request.getfixturevalue(request.param)


def refusal_of(call, *words, **more):
    with pytest.raises(Refused) as refusal:
        call(*words, **more)
    return refusal.value.args[1]


def in_mount_namespace(line, uid=0):
    """Words in front of a command that run `line` first, where mounts are seen by nobody else."""
    become = f'setpriv --reuid {uid} --regid {uid} --clear-groups' if uid else ''
    return ['unshare', '-m', 'sh', '-ec', f'{line}\nexec {become} "$@"', 'sh']


# ── what is refused ─────────────────────────────────────────────────────────────────────────

def test_without_bubblewrap_the_refusal_says_what_to_install(box, workdir):
    with open(f'{workdir}/no-program', 'w') as f:
        os.chmod(f.fileno(), 0o644)
    before = in_mount_namespace('for b in /usr/bin/bwrap /usr/local/bin/bwrap; do '
                                f'test ! -e $b || mount --bind {workdir}/no-program $b; done', box.uid)
    for call in (box.check, box.start):
        assert 'install the package bubblewrap' in refusal_of(call, popen={'before': before})


def test_a_masked_proc_is_named(box):
    before = in_mount_namespace('mount -t tmpfs none /proc/fs', box.uid)
    sentence = refusal_of(box.check, popen={'before': before})
    assert "Can't mount proc" in sentence and 'systempaths=unconfined' in sentence


def test_a_root_that_may_not_mount_is_refused_with_a_sentence(users):
    """As in a container: uid 0, and none of its rights."""
    before = ['setpriv', f'--reuid={USER_ID}', f'--regid={USER_ID}', '--clear-groups', 'unshare', '-Ur']
    assert 'mapped owners' in refusal_of(users.check, popen={'before': before})


def test_a_file_system_without_mapped_owners_is_refused_for_roots_own_jobs(roots, workdir):
    point = f'{workdir}/ramfs'
    os.mkdir(point)
    subprocess.run(['mount', '-t', 'ramfs', 'none', point], check=True)
    try:
        os.makedirs(f'{point}/alice', 0o700)
        roots.base = point
        sentence = refusal_of(roots.check)
        assert 'mapped owners' in sentence and 'uid =' in sentence
    finally:
        subprocess.run(['umount', point], check=True)


def test_a_tenants_jobs_need_no_mapped_owners(tenants, workdir):
    point = f'{workdir}/ramfs'
    os.mkdir(point)
    subprocess.run(['mount', '-t', 'ramfs', 'none', point], check=True)
    try:
        os.mkdir(f'{point}/w', 0o700)
        os.chown(f'{point}/w', TENANT_ID, TENANT_ID)
        tenants.base = point
        s = tenants.start(workspace='w')
        assert s.out('echo x > f; cat f') == 'x'
        s.end()
    finally:
        subprocess.run(['umount', point], check=True)


def test_a_missing_guest_is_named(box):
    words = [w for w in box.words({'workspace': 'alice/check'}) if not w.startswith('guest=')]
    box.workspace('check')
    assert '/nowhere/guest' in refusal_of(box.driver, 'check', 'guest=/nowhere/guest', *words)


def test_a_guest_for_another_machine_is_named(box, workdir):
    path = f'{workdir}/guest'
    with open(path, 'w') as f:
        f.write('no program')
    os.chmod(path, 0o755)
    words = [w for w in box.words({'workspace': 'alice/check'}) if not w.startswith('guest=')]
    box.workspace('check')
    for verb in ('check', 'start'):
        assert 'guest program does not run here' in refusal_of(box.driver, verb, f'guest={path}', *words)


def test_an_ordinary_users_daemon_starts_nothing_for_others(users):
    assert 'root' in refusal_of(users.start, tenant=f'{TENANT_ID}:{TENANT_ID}', workspace='alice/x')


def test_a_tenant_with_uid_0_is_not_root_either(roots):
    s = roots.start(tenant='0:0')
    assert s.status('Uid') == [str(MAPPED_ID)] * 4


def test_each_workspace_of_roots_own_can_have_an_id_of_its_own(roots):
    a, b = roots.start(mapped=200000), roots.start(mapped=200001)
    assert (a.status('Uid')[0], b.status('Uid')[0]) == ('200000', '200001')
    for s in (a, b):
        s.out('echo x > file')
        assert os.stat(f'{roots.base}/alice/{s.name}/file').st_uid == 0


def test_a_failed_start_leaves_no_process(box, workdir):
    path = f'{workdir}/guest'
    with open(path, 'w') as f:
        f.write('no program')
    os.chmod(path, 0o755)
    words = [w for w in box.words({'workspace': 'alice/check'}) if not w.startswith('guest=')]
    box.workspace('check')
    refusal_of(box.driver, 'start', f'guest={path}', *words)
    wait_for(lambda: not processes_with('--info-fd'), what='the end of bubblewrap')


def test_many_starts_at_once_share_no_descriptor(box):
    """On threads of one process, as in the daemon."""
    for i in range(12):
        box.workspace(f'c{i}')
    answer = box.driver('crowd', 'count=12', *box.words({'workspace': 'alice/c'}))
    crowd = [sandboxes.Sandbox(box, f'c{i}', {'pid': answer[f'pid{i}'], 'mark': answer[f'mark{i}']}) for i in range(12)]
    box.sandboxes += crowd
    sockets = set()
    for s in crowd:
        assert sorted(os.listdir(f'/proc/{s.pid}/fd')) == ['0', '1', '2', '3']
        sockets.add(os.readlink(f'/proc/{s.pid}/fd/3'))
        assert s.out('echo here') == 'here'
    assert len(sockets) == 12


# ── the workspace's path ────────────────────────────────────────────────────────────────────

def test_a_link_in_place_of_a_workspace_is_not_followed(box, workdir):
    os.mkdir(f'{workdir}/elsewhere', 0o777)
    for where in ('alice/link', 'linked/s'):
        parent, _, _ = where.rpartition('/')
        link = f'{box.base}/alice/link' if parent == 'alice' else f'{box.base}/linked'
        os.symlink(f'{workdir}/elsewhere', link)
        with pytest.raises(Refused):
            box.driver('start', 'name=x', *box.words({'workspace': where}))
    assert os.listdir(f'{workdir}/elsewhere') == []


def test_links_in_a_workspace_lead_nowhere_on_the_host(box):
    s = box.start()
    path = f'{box.base}/alice/{s.name}'
    for name, target in (('a', '/etc/shadow'), ('b', f'{box.base}/alice'), ('c', '../../../../../etc/shadow'),
                         ('d', '/proc/1/root/etc/shadow'), ('e', '/proc/1/cwd')):
        s.out(f'ln -s {target} {name}')
        assert os.readlink(f'{path}/{name}') == target
        assert s.run(f'ls {name}/')[1] != 0, name
        assert s.run(f'cat {name}')[1] != 0, name


@pytest.mark.parametrize('name', ['-x', '--bind', 'a b', 'ä', "a'b", 'a\nb', 'x' * 200, '%s', ':'])
def test_odd_names_of_workspaces_work(box, name):
    s = box.start(workspace=f'alice/{name}')
    s.out('echo x > file')
    assert os.path.exists(f'{box.base}/alice/{name}/file')


def test_a_tenants_groups_open_what_they_should(programs, workdir):
    box = Box(programs, workdir, tenant=f'{TENANT_ID}:{TENANT_ID}', groups=f'{TENANT_GROUP}')
    try:
        path = box.workspace('s1')
        for name, group in (('ours', TENANT_GROUP), ('theirs', USER_ID)):
            with open(f'{path}/{name}', 'w') as f:
                f.write('text')
            os.chown(f'{path}/{name}', 0, group)
            os.chmod(f'{path}/{name}', 0o640)
        s = box.start(workspace='alice/s1')
        assert s.out('cat ours') == 'text'
        assert s.run('cat theirs')[1] != 0
    finally:
        box.finish()


# ── bind = ──────────────────────────────────────────────────────────────────────────────────

@pytest.fixture
def data(workdir):
    path = f'{workdir}/data'
    os.mkdir(path)
    os.chmod(path, 0o777)
    with open(f'{path}/file', 'w') as f:
        f.write('data')
    os.chmod(f'{path}/file', 0o666)
    return path


def test_bound_paths_are_read_only_unless_said(box, data):
    s = box.start(bind=[data, f'{data}:/data', f'{data}:/opt/deep/rw:rw', f'{data}/file:/etc/one:ro'])
    assert s.out(f'cat {data}/file /data/file /opt/deep/rw/file /etc/one') == 'datadatadatadata'
    for path in (f'{data}/file', '/data/file', '/data/new', '/etc/one', '/opt/new', '/opt/deep/new'):
        assert s.run(f'echo more >> {path}')[1] != 0, path
    s.out('echo more > /opt/deep/rw/new')
    assert os.path.exists(f'{data}/new')


def test_a_path_below_a_closed_directory_can_be_bound_by_root(tenants, workdir):
    os.makedirs(f'{workdir}/closed/tools')
    os.chmod(f'{workdir}/closed', 0o700)
    with open(f'{workdir}/closed/tools/tool', 'w') as f:
        f.write('x')
    s = tenants.start(bind=[f'{workdir}/closed/tools:/opt/tools'])
    assert s.out('cat /opt/tools/tool') == 'x'


def test_a_bind_that_would_show_a_secret_directory_is_refused(box, workdir):
    for bind in (box.base, f'{box.base}/alice:/x', f'{workdir}:/y', '/:/host', f'{workdir}/../{box.path.split("/")[-1]}'):
        words = {'bind': [bind], 'secret': [box.base]}
        with pytest.raises(Refused):
            box.check(**words)


def test_a_file_of_etc_can_be_replaced(box, data):
    s = box.start(bind=[f'{data}/file:/etc/hosts'])
    assert s.out('cat /etc/hosts') == 'data'


def test_a_bind_that_is_not_there_is_named(box):
    assert '/no/where' in refusal_of(box.check, bind=['/no/where'])


# ── not confined ────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize('which', ['roots', 'tenants', 'users'])
def test_an_unconfined_guest_runs_in_the_workspaces_directory(request, which):
    box = request.getfixturevalue(which)
    s = box.start(confine='off', env=['A=1'])
    uid = {'roots': 0, 'tenants': TENANT_ID, 'users': USER_ID}[which]
    place = f'{box.base}/alice/{s.name}'
    assert s.status('Uid') == [str(uid)] * 4 and s.status('Groups') == []
    assert s.out('pwd; echo $HOME; echo $A; id -u').split() == [place, place, '1', str(uid)]
    s.out('echo x > file')
    assert os.stat(f'{place}/file').st_uid == uid
    assert sorted(os.listdir(f'/proc/{s.pid}/fd')) == ['0', '1', '2', '3']


def test_an_unconfined_guest_goes_on_without_the_daemon(roots):
    starter, s = roots.hold(confine='off')
    starter.kill()
    starter.communicate()
    assert s.out('echo here') == 'here'
    assert s.status('PPid') != [str(starter.pid)]


def test_an_unconfined_workspaces_processes_end_with_its_group(roots):
    s = roots.start(confine='off', group='wsm-test-group')
    try:
        s.out('setsid sh -c "trap : TERM HUP; while :; do sleep 1000053; done" > /dev/null 2>&1 &')
        wait_for(lambda: processes_with('1000053'))
        roots.driver('group-end', 'wsm-test-group', str(s.pid))
        assert not processes_with('1000053')
        assert ended(s.pid)
        assert not groups_named('wsm-test-group')
    finally:
        for pid in processes_with('1000053'):
            kill_quietly(pid)


# ── limits ──────────────────────────────────────────────────────────────────────────────────

def groups_named(pattern):
    found = subprocess.run(['find', '/sys/fs/cgroup', '-name', pattern], capture_output=True, text=True, check=False)
    return found.stdout.split()


@pytest.fixture
def limited(roots):
    """limited(memory='64M', …): a sandbox in a group of its own."""
    try:
        roots.driver('limits', 'memory=64M', 'cpus=1', 'pids=64')
    except Refused as refusal:
        pytest.skip(refusal.args[1])
    made = []

    def start(**options):
        group = f'wsm-test-{os.getpid()}-{len(made)}'
        s = roots.start(group=group, **options)
        made.append((group, s))
        return s
    yield start
    for group, s in made:
        if not ended(s.pid):
            s.end()
        roots.driver('group-remove', group)
        assert not groups_named(group)


def test_a_fork_bomb_hits_its_own_limit_and_nobody_elses(limited):
    s, other = limited(pids=40), limited(pids=40)
    s.run('''
        i=0
        while [ $i -lt 200 ]; do sleep 1000059 > /dev/null 2>&1 & i=$((i+1)); done
    ''')
    assert 10 < len(processes_with('1000059')) < 40
    assert other.out('for i in 1 2 3 4 5 6 7 8 9; do true & done; wait; echo fine') == 'fine'


def test_a_job_that_takes_too_much_memory_is_killed_and_the_guest_goes_on(limited):
    s, other = limited(memory='64M'), limited(memory='64M')
    text, code = s.run('exec python3 -c "x = bytearray(300 << 20); print(len(x))"')
    assert code == 128 + signal.SIGKILL, (text, code)
    assert s.out('echo here') == 'here'
    assert other.out('echo here') == 'here'


def test_memory_files_count_as_memory(limited):
    s = limited(memory='64M')
    text, code = s.run('exec head -c 300M /dev/zero > /tmp/x')
    assert code != 0, text


def test_processor_time_is_limited(limited):
    s = limited(cpus='0.05')
    directory = group_directory(s.pid, 'cpu')
    quota = 'cpu.max' if os.path.exists(f'{directory}/cpu.max') else 'cpu.cfs_quota_us'
    with open(f'{directory}/{quota}') as f:
        assert f.read().split()[0] == '5000'

    def throttled():
        with open(f'{directory}/cpu.stat') as f:
            return int(dict(line.split() for line in f)['nr_throttled']) > 0
    # Several, so that they are given so much at all on a machine that has others to serve.
    spinner = Child(lambda: s.run('for i in 1 2 3 4; do timeout 60 sh -c "while [ ! -e stop ]; do :; done" & done; wait'))
    wait_for(throttled)
    s.out('touch stop')
    spinner.result(100)


def test_limits_are_set_anew_by_a_later_daemon(roots, limited):
    s = limited(pids=40, memory='64M')
    group = os.path.basename(group_directory(s.pid, 'pids'))
    roots.driver('group-set', group, str(s.pid), 'pids=50', 'memory=128M', 'cpus=0.5')
    with open(f'{group_directory(s.pid, "pids")}/pids.max') as f:
        assert f.read() == '50\n'
    directory = group_directory(s.pid, 'cpu')
    assert os.path.basename(directory) == group
    roots.driver('group-set', group, str(s.pid))
    with open(f'{group_directory(s.pid, "pids")}/pids.max') as f:
        assert f.read() == 'max\n'


def test_a_group_that_holds_processes_is_not_removed(limited, roots):
    s = limited(pids=40)
    group = os.path.basename(group_directory(s.pid, 'pids'))
    assert 'cannot be removed' in refusal_of(roots.driver, 'group-remove', group)
    assert s.out('echo here') == 'here'


def test_jobs_cannot_leave_or_change_their_group(limited):
    s = limited(pids=40)
    assert s.run('test -e /sys')[1] == 1
    assert s.run('unshare -UrC sh -c "mount -t cgroup -o pids p /tmp && echo max > /tmp/pids.max"')[1] != 0
    with open(f'{group_directory(s.pid, "pids")}/pids.max') as f:
        assert f.read() == '40\n'


def test_limits_that_an_ordinary_user_cannot_set_are_refused_by_name(users):
    sentence = refusal_of(users.driver, 'limits', 'memory=64M', 'pids=64')
    assert 'memory' in sentence and 'pids' in sentence and 'cpus' not in sentence


def test_a_check_of_limits_leaves_no_group(roots):
    try:
        roots.driver('limits', 'memory=64M', 'cpus=1', 'pids=64')
    except Refused:
        pass
    assert not groups_named('wsmfs-check-*')
