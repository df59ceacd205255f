# SPDX-License-Identifier: Apache-2.0
"""What [sandbox] and [user NAME] say of a sandbox, as a job on the mount finds it; what cannot be had is
refused by name; a sandbox that cannot be made is told where the user looks."""

import contextlib
import os
import re
import shutil
import socket
import subprocess

import pytest

import harness
from harness import BOB_UID, BUILD, as_bob, errno_of, mount_fails, read, wait_for, write
from jobs import job, ordinary, output, run
from sandboxes import TENANT_GROUP, TENANT_ID, USER_ID, processes_with

pytestmark = [pytest.mark.root]


def sandbox(**keys):
    return '[sandbox]\n' + ''.join(f'{k} = {v}\n' for k, v in keys.items())


# ── limits ──────────────────────────────────────────────────────────────────────────────────

@pytest.fixture
def limited(mount):
    """limited(memory='64M', …): a mount with these limits; skipped where this machine has none."""
    def start(**keys):
        d = mount.prepare(config=sandbox(**keys))
        try:
            return d.start()
        except harness.MountFailed as e:
            d.proc = None
            d.checked = len(d.log())
            assert re.search(rf'{next(iter(keys))}.* cannot be limited', e.args[1]), e.args[1]
            pytest.skip(e.args[1])
    return start


def test_a_fork_bomb_hits_its_own_limit_and_nobody_elses(limited):
    d = limited(pids=40)
    bomb, other = d.session('alice/coder/s1').use(), d.session('bob/coder/s1').use()
    j = job(bomb).start('bomb() { bomb | bomb & }; bomb; i=0; while [ $i -lt 200 ]; do sleep 1000061 & i=$((i+1)); done')
    wait_for(lambda: 'annot fork' in j.text('log'), what='the limit')
    assert output(other, 'for i in 1 2 3 4 5 6 7 8 9 10; do true & done; wait; echo fine') == 'fine\n'
    assert len(processes_with('1000061')) < 40
    bomb.ctl('close force')
    assert not processes_with('1000061')
    assert output(bomb, 'echo again', 'k') == 'again\n'


def test_a_job_that_takes_too_much_memory_is_killed_and_says_so(limited):
    d = limited(memory='64M')
    s, other = d.session('alice/coder/s1').use(), d.session('bob/coder/s1').use()
    assert output(s, 'echo before', 'before') == 'before\n'
    j = job(s).start('exec python3 -c "x = bytearray(300 << 20); print(len(x))"')
    assert j.exit() == 'signal 9'
    assert (j.status()['signal'], j.text('stdout')) == (9, '')
    assert output(s, 'echo after', 'after') == 'after\n'
    assert output(other, 'echo here') == 'here\n'


def test_files_in_memory_count_too(limited):
    s = limited(memory='64M').session().use()
    assert run(s, 'exec head -c 300M /dev/zero > /tmp/x')[0] != '0'


def test_processor_time_is_limited(limited):
    s = limited(cpus='0.2').session().use()
    out = output(s, '''python3 -c "
import time
begin = time.monotonic()
while time.process_time() < 0.5: pass
print(time.monotonic() - begin)"''')
    assert float(out) > 1.5  # 0.5 s of work at a fifth takes 2.5 s


@pytest.mark.parametrize('key, value', [('memory', '64M'), ('cpus', '1'), ('pids', '64')])
def test_a_limit_that_an_ordinary_user_cannot_have_refuses_the_mount_by_name(mount, key, value):
    with ordinary(mount, sandbox(**{key: value})) as d:
        code, text = mount_fails(d)
        assert code != 0 and re.search(rf'{key} cannot be limited', text), text


@pytest.mark.parametrize('key, value, word', [
    ('memory', 'much', 'memory'), ('memory', '1K', 'memory'), ('cpus', '0', 'cpus'), ('pids', '1', 'pids'),
    ('network', 'some', 'network'), ('env', 'no-pair', 'env'), ('env_file', 'relative', 'env_file'),
    ('env_file', '/no/where', 'env_file'), ('bind', '/no/where', '/no/where'), ('bind', 'relative', 'bind'),
    ('user', 'no-such-user', 'user'), ('gpus', '1', 'gpus'), ('image', 'x', 'image')])
def test_what_makes_no_sense_or_cannot_be_honoured_refuses_the_mount_by_name(mount, key, value, word):
    code, text = mount_fails(mount.prepare(config=sandbox(**{key: value})))
    assert code != 0 and word in text, text


# ── what is given ───────────────────────────────────────────────────────────────────────────

def test_env_and_env_file_are_what_jobs_have_besides_the_four(mount, workdir):
    write(f'{workdir}/env', '# a line that means nothing\n\nFROM_FILE=a b = c\nBOTH=file\nQUOTED="x"\r\n')
    os.environ['WSM_TEST_MARK'] = 'of the daemon'
    try:
        s = mount(config=sandbox(env_file=f'{workdir}/env', env='ONE=1 BOTH=key LANG=de_DE.UTF-8')).session().use()
    finally:
        del os.environ['WSM_TEST_MARK']
    env = dict(line.split('=', 1) for line in output(s, 'env').splitlines())
    assert env.pop('PATH').startswith('/usr/local/sbin:')
    assert {k: v for k, v in env.items() if k not in ('PWD', 'OLDPWD', 'SHLVL', '_')} == {
        'HOME': '/workspace', 'TERM': 'xterm-256color', 'LANG': 'de_DE.UTF-8', 'FROM_FILE': 'a b = c', 'BOTH': 'key',
        'QUOTED': '"x"', 'ONE': '1'}


def test_a_jobs_own_env_comes_over_it(mount):
    s = mount(config=sandbox(env='ONE=1 TWO=2')).session().use()
    assert output(s, 'echo $ONE $TWO', env='TWO=own\n') == '1 own\n'


REACH = '''python3 - <<'END'
import socket
def reach(family, address):
    with socket.socket(family) as s:
        s.settimeout(5)
        return s.connect_ex(address) == 0
print(reach(socket.AF_INET, ('127.0.0.1', {port})), reach(socket.AF_UNIX, '\\0{name}'))
END'''


@pytest.mark.parametrize('network, reached', [(None, 'False False\n'), ('none', 'False False\n'),
                                              ('host', 'True True\n')])
def test_the_hosts_network_is_there_when_it_is_said(mount, network, reached):
    s = mount(config=sandbox(network=network) if network else '').session().use()
    name = f'wsm-test-{os.getpid()}'
    with socket.create_server(('127.0.0.1', 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f'\0{name}')
        abstract.listen()
        assert output(s, REACH.format(port=tcp.getsockname()[1], name=name)) == reached


def test_bound_paths_are_there_and_read_only_unless_said(mount, workdir):
    for name in ('ro', 'rw'):
        os.mkdir(f'{workdir}/{name}')
        os.chmod(f'{workdir}/{name}', 0o777)
        write(f'{workdir}/{name}/file', name)
    s = mount(config=sandbox(bind=f'{workdir}/ro:/opt/ro {workdir}/rw:/opt/rw:rw')).session().use()
    assert output(s, 'cat /opt/ro/file /opt/rw/file') == 'rorw'
    assert run(s, 'echo x > /opt/ro/new', 'a')[0] != '0'
    assert output(s, 'echo x > /opt/rw/new', 'b') == ''
    assert read(f'{workdir}/rw/new') == 'x\n'
    assert read(f'{s.inner}/root/opt/ro/file') == 'ro'


def test_a_bind_that_would_show_other_tenants_is_refused(mount):
    d = mount.prepare()
    os.makedirs(d.basedir, 0o700)
    for path in (d.basedir, f'{d.basedir}:/x', d.top, '/'):
        d.set_config(sandbox(bind=path))
        code, text = mount_fails(d)
        assert code != 0 and 'bind' in text, text


def test_user_says_who_jobs_think_they_are_and_files_keep_their_owner(mount):
    d = mount(config=sandbox(user='1000:1000'))
    s = d.session().use()
    assert output(s, 'id -u; id -g; touch made; stat -c %u made') == '1000\n1000\n1000\n'
    assert os.stat(s / 'made').st_uid == 0


def test_a_user_id_that_the_sandbox_does_not_have_is_refused_with_a_sentence(mount):
    s = mount().session().use()
    j = job(s, 'j', user='54321').start('id')
    assert j.exit() == 'error cannot become the user: the sandbox has no such user or group id'


# ── tenants ─────────────────────────────────────────────────────────────────────────────────

def test_a_tenants_further_groups_open_files_to_jobs(mount):
    d = mount(allow_other=True, config=f'[user alice]\nuid = {TENANT_ID}\ngid = {TENANT_ID}\ngroups = {TENANT_GROUP}\n')
    s = d.session().use()
    for name, group in (('ours', TENANT_GROUP), ('theirs', USER_ID)):
        write(f'{d.basedir}/alice/coder/{name}', name)
        os.chown(f'{d.basedir}/alice/coder/{name}', 0, group)
        os.chmod(f'{d.basedir}/alice/coder/{name}', 0o640)
    assert output(s, 'cat ours; cat theirs || true') == 'ours'
    j = job(s, 'k').start('sleep 1000067')
    pid = wait_for(lambda: processes_with('sleep\0' + '1000067'))[0]
    status = read(f'/proc/{pid}/status')
    assert re.search(rf'^Groups:\s+{TENANT_GROUP}\s*$', status, re.M), status
    j.ctl('kill')
    j.exit()


def test_more_groups_than_a_sandbox_takes_are_refused(mount):
    groups = ','.join(str(70000 + i) for i in range(300))
    code, text = mount_fails(mount.prepare(config=f'[user alice]\nuid = {TENANT_ID}\ngroups = {groups}\n'))
    assert code != 0 and 'groups' in text


# ── busy = processes ────────────────────────────────────────────────────────────────────────

LEAVE = '(setsid sh -c "until test -e stop; do sleep 0.1; done; : 1000071" > /dev/null 2>&1 &)'


@pytest.mark.concurrency
def test_what_a_job_left_running_keeps_its_workspace_where_that_is_said(mount):
    d = mount(ttl='1', busy='files,jobs,processes')
    s, idle = d.session('alice/coder/s1').use(), d.session('bob/coder/s1').use()
    assert run(s, LEAVE)[0] == '0' and run(idle, 'true')[0] == '0'
    with contextlib.closing(d.events()) as events:
        for _ in range(2):  # the other one goes at its deadline, and again
            idle.wait_state('absent')
            assert run(idle, 'true', f'j{_}')[0] == '0'
        idle.wait_state('absent')
        assert s.state() == 'ready' and processes_with('1000071')
        write(f'{d.basedir}/alice/coder/stop', '')  # behind the mount: no access
        events.wait_named('evicted', session='s1', user='alice')
    assert not processes_with('1000071')


def test_it_makes_no_room_either(mount):
    d = mount(max_live=1, busy='files,jobs,processes')
    d.expect('max_live: 1 workspaces are live and none of them is idle')
    s, other = d.session('alice/coder/s1').use(), d.session('bob/coder/s1')
    assert run(s, LEAVE)[0] == '0'
    assert errno_of(other.use) == 'EDQUOT'
    write(f'{d.basedir}/alice/coder/stop', '')
    wait_for(lambda: not processes_with('1000071'))
    wait_for(lambda: errno_of(other.use) is None, what='room')
    assert s.state() == 'absent'


def test_without_confinement_too(mount):
    d = mount(ttl='1', busy='files,jobs,processes', confine='off')
    s, idle = d.session('alice/coder/s1').use(), d.session('bob/coder/s1').use()
    assert run(s, LEAVE)[0] == '0'
    idle.wait_state('absent')
    wait_for(lambda: s.status()['idle_s'] >= 3)
    assert s.state() == 'ready' and processes_with('1000071')
    write(f'{d.basedir}/alice/coder/stop', '')
    s.wait_state('absent')


def test_a_backend_that_cannot_tell_refuses_it_by_name(mount):
    d = mount.test_backend(start=False, busy='processes')
    code, text = mount_fails(d)
    assert code != 0 and 'busy=processes' in text


# ── a sandbox that cannot be made ───────────────────────────────────────────────────────────

@pytest.fixture
def broken(mount, workdir):
    """A mount whose guest program does not run."""
    os.makedirs(f'{workdir}/build/fs')
    os.makedirs(f'{workdir}/build/backends/guest')
    shutil.copy(f'{BUILD}/fs/wsmfs', f'{workdir}/build/fs/wsmfs')
    write(f'{workdir}/build/backends/guest/wsm-guest', 'no program')
    os.chmod(f'{workdir}/build/backends/guest/wsm-guest', 0o755)
    d = mount.prepare()
    d.program = f'{workdir}/build/fs/wsmfs'
    return d


def test_a_sandbox_that_cannot_be_made_is_told_in_exit_and_files_work(broken):
    s = broken.start().session().use()
    j = job(s).start('echo never')
    assert re.match(r'error .*the guest program does not run here: install', j.exit()), j.exit()
    assert (j.text('stdout'), j.text('stderr'), j.state()) == ('', '', 'failed')
    write(s / 'file', 'works')
    assert read(s / 'file') == 'works'
    many = [job(s, f'j{i}').start('true') for i in range(20)]
    assert all(k.exit().startswith('error ') for k in many)


def test_it_is_said_in_the_log_at_the_start(broken):
    broken.start()
    wait_for(lambda: 'jobs will be refused here: ' in broken.log(), what='the log')


def test_when_it_is_mended_the_next_job_runs(broken, workdir):
    s = broken.start().session().use()
    assert run(s, 'true')[0].startswith('error ')
    os.unlink(f'{workdir}/build/backends/guest/wsm-guest')
    shutil.copy(f'{BUILD}/backends/guest/wsm-guest', f'{workdir}/build/backends/guest/wsm-guest')
    assert output(s, 'echo here', 'k') == 'here\n'


WITHOUT = '''
mount --bind {workdir}/no-program /usr/bin/bwrap
{program} -f local:{workdir}/base {workdir}/mnt -o state_dir={workdir}/state 2> {workdir}/log &
until test -e {workdir}/mnt/.wsm/status; do sleep 0.05; done
d={workdir}/mnt/alice/coder/s1/.wsm/jobs/j
mkdir $d
echo 'echo never' > $d/cmd
cat $d/exit
umount {workdir}/mnt
wait
'''


def test_without_bubblewrap_a_job_says_what_to_install_and_is_not_run_unconfined(workdir):
    os.mkdir(f'{workdir}/mnt')
    write(f'{workdir}/no-program', '')
    os.chmod(f'{workdir}/no-program', 0o644)
    done = subprocess.run(['unshare', '-m', 'sh', '-ec', WITHOUT.format(workdir=workdir, program=harness.WSMFS)],
                          capture_output=True, text=True, timeout=100, check=False, env=harness.environment())
    assert done.stdout.startswith('error ') and 'install the package bubblewrap' in done.stdout, done


# ── --check ─────────────────────────────────────────────────────────────────────────────────

def check(*words, before=(), **more):
    done = subprocess.run([*before, harness.WSMFS, '--check', *words], capture_output=True, text=True, timeout=100,
                          check=False, env=harness.environment(), **more)
    assert not harness.REPORT.search(done.stderr), done.stderr
    line = re.search(r'^(ok|note|missing) +confinement +(.*\n(?: .*\n)?)', done.stdout, re.M)
    assert line, done.stdout
    return done.returncode, line[1], line[2], done.stdout.splitlines()[-1]


def test_check_tries_the_sandbox(workdir):
    os.mkdir(f'{workdir}/mnt')
    code, verdict, text, _ = check(f'local:{workdir}/base', f'{workdir}/mnt', '-o', f'state_dir={workdir}/state')
    assert (code, verdict) == (0, 'ok') and 'bubblewrap works' in text
    assert os.listdir(workdir) == ['mnt']


def test_check_says_what_is_missing_and_how_to_mend_it(workdir):
    os.mkdir(f'{workdir}/mnt')
    write(f'{workdir}/no-program', '')
    os.chmod(f'{workdir}/no-program', 0o644)
    before = ['unshare', '-m', 'sh', '-ec', f'mount --bind {workdir}/no-program /usr/bin/bwrap; exec "$@"', 'sh']
    code, verdict, text, last = check(f'local:{workdir}/base', f'{workdir}/mnt', before=before)
    assert (code, verdict) == (1, 'missing') and 'install the package bubblewrap' in text
    assert last == 'A mount would work here, but no job would run in it.'
    code, verdict, text, _ = check(f'local:{workdir}/base', f'{workdir}/mnt', '-o', 'confine=off', before=before)
    assert (code, verdict) == (0, 'ok') and 'off' in text


def test_check_names_a_key_that_cannot_be_honoured(workdir):
    os.mkdir(f'{workdir}/mnt')
    write(f'{workdir}/config', '[sandbox]\nbind = /no/where\n')
    words = [f'local:{workdir}/base', f'{workdir}/mnt', '-o', f'config={workdir}/config,state_dir={workdir}/state']
    code, verdict, text, last = check(*words)
    assert (code, verdict) == (1, 'missing') and '/no/where' in text
    assert last == 'A mount would not work here yet.'
    done = subprocess.run([harness.WSMFS, *words], capture_output=True, text=True, timeout=100, check=False,
                          env=harness.environment())
    assert done.returncode == 1 and '/no/where' in done.stderr, done


def test_doctor_tells_the_same(workdir):
    done = subprocess.run([f'{BUILD}/mount-helpers/wsm/wsm', 'doctor', f'local:{workdir}/base', f'{workdir}/mnt'],
                          capture_output=True, text=True, timeout=100, check=False, env=harness.environment())
    assert len(re.findall(r'^ok +confinement ', done.stdout, re.M)) == 1, done.stdout


# ── an ordinary user ────────────────────────────────────────────────────────────────────────

def test_an_ordinary_users_jobs_are_theirs(mount):
    with ordinary(mount) as d:
        d.start()
        s = d.session()

        def use():
            j = job(s).start('id -u; touch made; stat -c %u made; ls /home /root 2>/dev/null | wc -l')
            return read(j / 'exit') + read(j / 'stdout')

        assert as_bob(use) == f'0\n{BOB_UID}\n{BOB_UID}\n0\n'
        d.stop()


# ── as options ──────────────────────────────────────────────────────────────────────────────

def test_the_keys_are_options_too_and_those_win_over_the_file(mount, workdir):
    write(f'{workdir}/env', 'FROM_FILE=yes\n')
    d = mount(config=sandbox(env='ONE=file', network='host', setup='touch /tmp/wrong'), env='ONE=option TWO=2',
              network='none', setup='touch /tmp/right', env_file=f'{workdir}/env')
    s = d.session().use()
    assert output(s, 'echo $ONE $TWO $FROM_FILE; ls /tmp; tail -n +3 /proc/net/dev | wc -l') == 'option 2 yes\nright\n1\n'
    config = read(f'{d.mnt}/.wsm/config')
    assert config.count('setup = ') == 1 and '[sandbox]' in config.split('setup = ')[0]


def test_a_limit_may_be_an_option(mount):
    code, text = mount_fails(mount.prepare(memory='little'))
    assert code != 0 and 'memory' in text
