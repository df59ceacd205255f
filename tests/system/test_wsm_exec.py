# SPDX-License-Identifier: Apache-2.0
"""wsm exec, jobs and logs: commands in a session, attended from the command line."""

import fcntl
import hashlib
import json
import os
import re
import signal
import struct
import subprocess
import termios
import threading

import pytest

from harness import ALICE_GID, ALICE_UID, environment, read, run, wait_for, write
from wsm_command import WSM, Terminal, start, stopped, wsm

MB = 1 << 20


def with_jobs(session):
    if 'jobs' not in os.listdir(session.control):
        pytest.skip('this build has no .wsm/jobs')
    return session


@pytest.fixture
def s(fresh):
    """A session of the shared mount; no job may be left in it."""
    with_jobs(fresh)
    yield fresh
    left = os.listdir(f'{fresh.control}/jobs')
    for name in left:
        end_job(f'{fresh.control}/jobs/{name}')
    assert not left, f'jobs were left: {left}'


def end_job(path):
    try:
        write(f'{path}/ctl', 'kill\n')
        read(f'{path}/exit')
    except OSError:
        pass
    os.rmdir(path)


def ex(session, *words, options=(), **more):
    return wsm('exec', *options, session.path, '--', *words, **more)


def sh(session, script, *options, **more):
    return ex(session, 'sh', '-c', script, options=options, **more)


def exec_start(session, *words, options=(), **more):
    more.setdefault('stdout', subprocess.PIPE)
    more.setdefault('stderr', subprocess.PIPE)
    return start(session.daemon, 'exec', *options, session.path, '--', *words, **more)


def line_of(child):
    return child.stdout.readline()


# ── how it ends ─────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize('status', [0, 1, 7, 255])
def test_the_exit_status_is_the_commands(s, status):
    sh(s, f'exit {status}', check=status)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1])
def test_a_signal_that_ended_it_is_128_and_more(s, number):
    sh(s, f'kill -{int(number)} $$', check=128 + number)


def test_a_command_that_is_not_there_is_127_with_a_sentence(s):
    done = ex(s, 'no-such-command', check=127)
    assert 'no-such-command' in done.stderr and 'not found' in done.stderr


def test_a_command_that_is_no_program_is_126_with_a_sentence(s):
    write(s / 'plain', 'x')
    done = ex(s, './plain', check=126)
    assert 'plain' in done.stderr


def test_the_time_limit_ends_it_and_says_so(s):
    done = sh(s, 'echo begun; exec sleep 1000', '--timeout', '1', check=128 + signal.SIGTERM)
    assert done.stdout == 'begun\n' and 'its time was over' in done.stderr


def test_what_it_left_running_keeps_nobody_waiting(s):
    assert sh(s, 'sleep 1000 & echo done').stdout == 'done\n'


# ── its streams ─────────────────────────────────────────────────────────────────────────────

def test_stdout_and_stderr_are_kept_apart(s):
    done = sh(s, 'echo out; echo err >&2; printf more; printf none >&2')
    assert (done.stdout, done.stderr) == ('out\nmore', 'err\nnone')


def test_output_comes_as_it_is_written(s):
    child = exec_start(s, 'sh', '-c', 'echo one; read x; echo two', options=['-i'], stdin=subprocess.PIPE)
    assert line_of(child) == b'one\n'
    child.stdin.write(b'go\n')
    child.stdin.flush()
    assert line_of(child) == b'two\n'
    assert child.wait(60) == 0


def test_binary_data_goes_through_both_ways(s):
    data = bytes(range(256)) * 1024 + os.urandom(3 * MB + 17)
    assert ex(s, 'cat', options=['-i'], stdin=None, input=data, text=False).stdout == data


def test_without_i_its_input_is_empty(s):
    assert sh(s, 'cat; echo end', stdin=None, input='lost').stdout == 'end\n'


@pytest.mark.parametrize('source', ['/dev/null', 'file', 'closed'])
def test_input_from_anywhere(s, workdir, source):
    write(f'{workdir}/file', 'x' * 100000)
    opened = {'/dev/null': '</dev/null', 'file': f'<{workdir}/file', 'closed': '<&-'}[source]
    done = run('bash', '-c', f'{WSM} exec -i {s.path} -- wc -c {opened}', env=environment())
    assert int(done) == (100000 if source == 'file' else 0)


def test_much_input_arrives_whole(s):
    data = os.urandom(MB) * 48
    done = ex(s, 'sha256sum', options=['-i'], stdin=None, input=data, text=False)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_input_that_nobody_reads_keeps_nobody_waiting(s):
    endless = subprocess.Popen(['yes'], stdout=subprocess.PIPE)
    try:
        assert sh(s, 'echo enough', '-i', stdin=endless.stdout).stdout == 'enough\n'
        assert ex(s, 'head', '-n1', options=['-i'], stdin=endless.stdout).stdout == 'y\n'
    finally:
        endless.stdout.close()
        endless.wait(30)


def test_much_goes_in_and_out_at_once(s):
    data = os.urandom(MB) * 24
    done = ex(s, 'sh', '-c', 'tee /dev/stderr', options=['-i'], stdin=None, input=data, text=False)
    assert done.stdout == data and done.stderr == data


def test_a_slow_reader_gets_all_of_it(s):
    child = exec_start(s, 'head', '-c', str(20 * MB), '/dev/zero')
    seen = 0
    while piece := os.read(child.stdout.fileno(), 300007):
        seen += len(piece)
        stopped(child) if seen % 7 == 0 else None
    assert seen == 20 * MB and child.wait(60) == 0


def test_a_reader_that_goes_away_ends_it_as_in_a_pipeline(s):
    line = f'{WSM} exec {s.path} -- yes | head -n 2; echo ${{PIPESTATUS[0]}}'
    assert run('bash', '-c', line, env=environment()).split() == ['y', 'y', str(128 + signal.SIGPIPE)]


def test_output_that_cannot_be_written_is_said(s):
    with open('/dev/full', 'wb') as full:
        assert 'No space left' in ex(s, 'echo', 'x', stdout=full, check=125).stderr


def test_output_into_a_file_is_appended_where_it_stands(s, workdir):
    write(f'{workdir}/out', 'before\n')
    run('bash', '-c', f'{{ echo own; {WSM} exec {s.path} -- echo job; echo own; }} >>{workdir}/out', env=environment())
    assert read(f'{workdir}/out') == 'before\nown\njob\nown\n'


def test_our_output_stays_blocking_for_others(s):
    line = f'{WSM} exec {s.path} -- true; python3 -c "import os; print(os.get_blocking(0), os.get_blocking(1))"'
    out, into = os.pipe()
    try:
        assert run('bash', '-c', line + f' <&{out}', pass_fds=[out], env=environment()) == 'True True\n'
    finally:
        os.close(out)
        os.close(into)


# ── what it runs in ─────────────────────────────────────────────────────────────────────────

def test_words_arrive_byte_for_byte(s):
    words = [b'', b'--', b'-x', b' a  b ', b'"\'\\', b'line\nline\n', b'$HOME `x` *', 'ünï'.encode(), b'\xff\xfe\x80',
             b'\x01\x7f\t', b'/', b'{"a": [1]}', b'x' * 100000]
    done = subprocess.run([WSM, 'exec', s.path, '--', 'printf', r'%s\0', *words], capture_output=True, timeout=60,
                          env=environment(), check=True)
    assert done.stdout.split(b'\0')[:-1] == words


def test_the_dashes_may_be_left_out(s):
    assert wsm('exec', s.path, 'echo', '-n', '--', 'x').stdout == '-- x'


def test_its_directory(s):
    os.makedirs(s / 'a dir/b')
    root = ex(s, 'pwd').stdout
    assert ex(s, 'pwd', options=['-w', 'a dir/b']).stdout == root.rstrip('\n') + '/a dir/b\n'
    assert ex(s, 'pwd', options=['--workdir', s / 'a dir']).stdout == root.rstrip('\n') + '/a dir\n'
    assert 'cwd' in ex(s, 'pwd', options=['-w', '/etc'], check=125).stderr
    assert 'missing' in ex(s, 'pwd', options=['-w', 'missing'], check=None).stderr


def test_its_environment(s):
    options = ['-e', 'A=1=2', '-e', 'B=line\nline', '-e', 'OURS', '--env=C=', '-e', 'NOT_SET_HERE']
    done = ex(s, 'env', '-0', options=options, env={'OURS': 'ours', 'SECRET': 'secret'})
    found = dict(v.split('=', 1) for v in done.stdout.rstrip('\0').split('\0'))
    assert found['A'] == '1=2' and found['B'] == 'line\nline' and found['OURS'] == 'ours' and found['C'] == ''
    assert 'NOT_SET_HERE' not in found and 'SECRET' not in found


def test_it_sees_the_files_and_we_see_its_own(s):
    write(s / 'given', 'in')
    sh(s, 'cat given > made')
    assert read(s / 'made') == 'in'


def test_it_starts_what_was_closed(s):
    s.use()
    wsm('close', s.path)
    assert ex(s, 'echo', 'x').stdout == 'x\n'
    assert s.state() == 'ready'


# ── signals ─────────────────────────────────────────────────────────────────────────────────

TRAPS = 'trap "echo got {0}; exit 3" {0}; echo ready; while :; do sleep 0.05; done'


@pytest.mark.parametrize('name', ['INT', 'TERM', 'HUP', 'QUIT', 'USR1', 'USR2'])
def test_signals_are_passed_on(s, name):
    child = exec_start(s, 'sh', '-c', TRAPS.format(name))
    assert line_of(child) == b'ready\n'
    child.send_signal(getattr(signal, f'SIG{name}'))
    assert child.communicate(timeout=60)[0] == f'got {name}\n'.encode()
    assert child.returncode == 3


def test_a_signal_ends_what_does_not_mind_it(s):
    child = exec_start(s, 'sh', '-c', 'echo ready; exec sleep 1000')
    assert line_of(child) == b'ready\n'
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGINT


def test_stopping_it_again_and_again_loses_nothing(s):
    count = 'i=0; while [ $i -lt 300 ]; do i=$((i + 1)); echo $i; echo $i >&2; sleep 0.005; done'
    child = exec_start(s, 'sh', '-c', count)
    got = {}
    readers = [threading.Thread(target=lambda n=n, f=f: got.update({n: f.read()}))
               for n, f in (('out', child.stdout), ('err', child.stderr))]
    for r in readers:
        r.start()
    while child.poll() is None:
        os.kill(child.pid, signal.SIGSTOP)
        os.kill(child.pid, signal.SIGCONT)
    for r in readers:
        r.join(60)
    wanted = ''.join(f'{i}\n' for i in range(1, 301)).encode()
    assert got == {'out': wanted, 'err': wanted} and child.returncode == 0


# ── at a terminal ───────────────────────────────────────────────────────────────────────────

def set_size(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))


@pytest.fixture
def terminal(s):
    made = []

    def make(*words, options=('-it',)):
        # bash looks after a terminal as a user's shell does: what is left of it is shown at the end
        script = f'stty rows 33 cols 77; before=$(stty -g); {WSM} exec {" ".join(options)} {s.path} -- "$@"; ' \
                 'status=$?; [ "$before" = "$(stty -g)" ] && echo "status $status, as before"'
        made.append(Terminal(['bash', '-c', script, 'bash', *words], TERM='vt220'))
        return made[-1]
    yield make
    for t in made:
        t.kill()


def test_with_t_it_has_a_terminal_of_our_size(terminal):
    t = terminal('sh', '-c', 'tty; stty size; echo $TERM; exit 4')
    assert t.wait() == 0
    assert b'/dev/' in t.shown and b'33 77' in t.shown and b'vt220' in t.shown
    assert t.shown.rstrip().endswith(b'status 4, as before')


def test_keys_go_to_the_command_ctrl_c_too(terminal):
    script = 'trap "echo interrupted" INT; echo ready; while ! read x; do :; done; echo "read $x"; exit 5'
    t = terminal('sh', '-c', script)
    t.wait_shown(b'ready')
    t.type(b'\x03')
    t.wait_shown(b'interrupted')
    t.type(b'word\r')
    t.wait_shown(b'read word')
    t.wait()
    assert b'status 5, as before' in t.shown


def test_the_size_follows(terminal):
    t = terminal('bash', '-c', 'trap "stty size; exit 0" WINCH; echo ready; while :; do sleep 0.05; done')
    t.wait_shown(b'ready')
    set_size(t.fd, 44, 101)
    t.wait_shown(b'44 101')
    t.wait()


def test_a_terminal_is_raw_again_after_it_was_stopped(terminal):
    t = terminal('sh', '-c', 'echo ready; cat -v')
    t.wait_shown(b'ready')
    pid = int(run('pgrep', '-f', f'^{WSM} exec', '-P', t.pid).split()[0])
    cooked = termios.tcgetattr(t.fd)
    cooked[3] |= termios.ICANON | termios.ECHO | termios.ISIG
    for number in (signal.SIGSTOP, signal.SIGTSTP):
        os.kill(pid, number)
        wait_for(lambda: read(f'/proc/{pid}/stat').rsplit(')', 1)[1].split()[0] == 'T')
        termios.tcsetattr(t.fd, termios.TCSANOW, cooked)
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not termios.tcgetattr(t.fd)[3] & termios.ICANON)
    t.type(b'still here\r\x04')
    assert t.wait() == 0
    assert b'still here' in t.shown and b'status 0, as before' in t.shown


def test_without_i_a_terminal_stays_as_it_is(terminal):
    t = terminal('sh', '-c', 'tty; stty size', options=['-t'])
    t.wait()
    assert b'33 77' in t.shown and b'status 0, as before' in t.shown


# ── what it leaves and what goes wrong ──────────────────────────────────────────────────────

@pytest.mark.concurrency
def test_many_at_once(s):
    children = [exec_start(s, 'sh', '-c', f'echo {i}; cat; exit {i}', options=['-i'], stdin=subprocess.PIPE)
                for i in range(24)]
    for i, child in enumerate(children):
        out, err = child.communicate(f'in {i}'.encode(), timeout=120)
        assert (out, err, child.returncode) == (f'{i}\nin {i}'.encode(), b'', i)


def test_a_limit_is_said_in_words(mount):
    d = mount(max_jobs=1)
    s = with_jobs(d.session())
    child = exec_start(s, 'sh', '-c', 'echo ready; exec sleep 1000')
    assert line_of(child) == b'ready\n'
    assert 'max_jobs' in ex(s, 'true', check=125).stderr
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    ex(s, 'true')


def test_a_job_outlives_the_daemon_and_is_found_again(mount):
    d = mount()
    s = with_jobs(d.session())
    script = 'echo one; echo one >&2; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 6'
    child = exec_start(s, 'sh', '-c', script)
    assert line_of(child) == b'one\n'
    d.kill()
    said = child.communicate(timeout=60)[1].decode()
    assert child.returncode == 125
    name = re.search(r'as (\S+)$', said, re.M)[1]
    d.start()
    follower = start(d, 'logs', '-f', s.path, name, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    write(s / 'go', '')
    assert follower.communicate(timeout=60) == (b'one\ntwo\n', b'one\n')
    assert read(f'{s.control}/jobs/{name}/exit') == '6\n'


@pytest.mark.root
def test_a_tenant_runs_commands_in_his_own_sessions_alone(mount):
    d = mount(allow_other=True, config=f'[user alice]\nuid = {ALICE_UID}\ngid = {ALICE_GID}\n')
    with_jobs(d.session())
    who = {'user': ALICE_UID, 'group': ALICE_GID, 'extra_groups': []}
    assert ex(d.session(), 'echo', 'x', **who).stdout == 'x\n'
    assert 'Permission denied' in ex(d.session('bob/coder/s1'), 'echo', 'x', check=125, **who).stderr


# ── jobs and logs ───────────────────────────────────────────────────────────────────────────

@pytest.fixture
def job(s):
    """job(name, script): a job that is started by its files."""
    made = []

    def make(name, script):
        path = f'{s.control}/jobs/{name}'
        os.mkdir(path)
        made.append(path)
        write(f'{path}/cmd', script)
        return path
    yield make
    for path in made:
        end_job(path)


def test_jobs_lists_what_runs_and_what_has_ended(s, job):
    read(job('first', 'exit 3') + '/exit')
    read(job('second', 'kill -9 $$') + '/exit')
    third = job('third', 'echo ready; exec sleep 1000')
    with open(f'{third}/stdout', 'rb') as f:
        f.readline()
    objects = json.loads(wsm('jobs', '--json', s.path).stdout)
    assert [(o['name'], o['command'], o['exit_code']) for o in objects] == \
        [('first', 'exit 3', 3), ('second', 'kill -9 $$', None), ('third', 'echo ready; exec sleep 1000', None)]
    heading, *lines = [re.split(r'\s{2,}', line.strip()) for line in wsm('jobs', s.path).stdout.splitlines()]
    assert heading == ['JOB', 'STATE', 'TIME', 'EXIT', 'COMMAND']
    assert [(line[0], line[3]) for line in lines] == [('first', '3'), ('second', 'signal 9'), ('third', '-')]
    assert s.status()['running_jobs'] == 1
    assert json.loads(wsm('ps', '--json', s.daemon.mnt).stdout)[-1]['jobs'] == 1


def test_logs_prints_what_there_is_now(s, job):
    one = job('one', 'echo out; echo err >&2; echo more')
    read(f'{one}/exit')
    job('two', 'echo begun; exec sleep 1000')
    assert sorted(wsm('logs', s.path, 'one').stdout.split()) == ['err', 'more', 'out']
    assert wsm('logs', '--stdout', s.path, 'one').stdout == 'out\nmore\n'
    assert wsm('logs', '--stderr', s.path, 'one').stdout == 'err\n'
    assert wsm('logs', '--stderr', f'{s.path}/.wsm/jobs/one').stdout == 'err\n'
    assert wsm('logs', '--stderr', f'{one}/stdout').stdout == 'err\n'
    wait_for(lambda: wsm('logs', s.path).stdout == 'begun\n')
    assert wsm('logs', '--stdout', s.path).stdout == 'begun\n'


def test_logs_follows_to_the_end(s, job):
    job('one', 'echo out; echo err >&2; while [ ! -e go ]; do sleep 0.05; done; echo end')
    child = start(s.daemon, 'logs', '-f', s.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert line_of(child) == b'out\n'
    stopped(child)
    write(s / 'go', '')
    assert child.communicate(timeout=60) == (b'end\n', b'err\n')
    assert child.returncode == 0


def test_logs_of_a_job_that_is_not_there(s):
    assert 'no job nonsense' in wsm('logs', s.path, 'nonsense', check=1).stderr
    assert 'there are no jobs' in wsm('logs', s.path, check=1).stderr
    assert 'no name of a job' in wsm('logs', s.path, '../ctl', check=1).stderr
