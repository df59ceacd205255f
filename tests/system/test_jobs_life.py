# SPDX-License-Identifier: Apache-2.0
"""How jobs end, what is kept of them, and what they survive."""

import os
import signal
import time

import pytest

from harness import Child, errno_of, put, read, sandboxes_of, wait_for, write
from jobs import Job, files_kept, job, output, run
from sandboxes import processes_with
from workbench import below

pytestmark = pytest.mark.root

GO = 'until [ -e go ]; do sleep 0.02; done'



def parent_of(pid):
    return int(read(f'/proc/{pid}/stat').rsplit(')', 1)[1].split()[1])


# ── ending ──────────────────────────────────────────────────────────────────────────────────

def test_kill_ends_the_whole_tree(fresh):
    j = job(fresh).start('setsid sleep 7654.321 & sleep 7654.322 & echo ready; wait')
    j.wait_output('ready')
    assert wait_for(lambda: processes_with('7654.321') and processes_with('7654.322'))
    j.ctl('kill')
    assert j.exit() == 'signal 15'
    assert not processes_with('7654.32')


def test_kill_is_followed_by_sigkill_after_the_grace(mount):
    s = mount(grace='1').session()
    j = job(s).start('trap "" TERM; echo ready; while :; do sleep 0.1; done')
    j.wait_output('ready')
    j.ctl('kill')
    assert j.exit() == 'signal 9'


def test_a_signal_by_name_reaches_the_job(fresh):
    j = job(fresh).start('trap "echo caught; exit 9" INT; echo ready; while :; do sleep 0.05; done')
    j.wait_output('ready')
    j.ctl('signal INT')
    assert j.exit() == '9' and 'caught' in j.text('stdout')


def test_a_signal_by_number_works(fresh):
    j = job(fresh).start('echo ready; exec sleep 1000')
    j.wait_output('ready')
    j.ctl('signal 9')
    assert j.exit() == 'signal 9'


def test_a_timeout_ends_the_process_tree_and_keeps_the_output(mount):
    s = mount(grace='1').session()
    j = job(s, timeout='0.5')
    j.start('setsid sh -c "trap \\"\\" TERM; while :; do sleep 0.1; done; : 8765.432" & '
            'sleep 8765.433 & echo partial; wait')
    assert j.exit() in ('signal 15', 'signal 9')
    assert j.status()['timed_out'] is True
    assert j.text('stdout') == 'partial\n'
    wait_for(lambda: not processes_with('8765.43'))


def test_a_job_that_ends_in_time_is_not_timed_out(fresh):
    j = job(fresh, timeout='60').start('echo x')
    assert j.exit() == '0' and j.status()['timed_out'] is False


def test_a_job_can_be_killed_before_it_runs(fresh):
    j = job(fresh).start('sleep 1000')
    wait_for(lambda: j.state() != 'new')
    errno_of(j.ctl, 'kill')
    wait_for(lambda: j.state() in ('failed', 'ended') or errno_of(j.ctl, 'kill') is None)
    assert j.exit() == 'signal 15' or j.exit().startswith('error ')


# ── closing ─────────────────────────────────────────────────────────────────────────────────

BYE = 'trap "sleep 0.5; echo bye > bye; exit 0" TERM; echo ready; while :; do sleep 0.05; done'


def test_close_lets_a_job_say_goodbye(fresh):
    j = job(fresh).start(BYE)
    j.wait_output('ready')
    fresh.ctl('close')
    assert read(fresh / 'bye') == 'bye\n'
    assert j.exit() == '0'


def test_a_destroy_ends_though_somebody_waits_for_it_in_a_directory_that_changes(mount):
    """Who makes a name holds the kernel's lock of the directory meanwhile, and waits for the end of the destroy; nobody
    can tell the kernel then that the directory has changed behind the mount. The end of the jobs must not wait for
    that, for which the destroy waits."""
    s = mount(grace='30').session().use()
    j = job(s).start('trap "until [ -e go ]; do sleep 0.02; done; exit 0" TERM; echo ready; while :; do sleep 0.05; done')
    j.wait_output('ready')
    destroy = Child(lambda: s.ctl('destroy'))
    s.wait_state('closing')
    maker = Child(lambda: os.mkdir(s / 'made'))
    wait_for(lambda: 'request_wait_answer' in read(f'/proc/{maker.pid}/stack'))
    write(below(s, 'go'), '')
    destroy.result(60)
    maker.result(60)
    assert os.listdir(s / '') == os.listdir(below(s)) == ['made']
    assert j.exit() == '0'


def test_unmounting_lets_a_job_say_goodbye(mount):
    d = mount()
    job(d.session()).start(BYE).wait_output('ready')
    d.stop()
    assert read(f'{d.basedir}/alice/coder/bye') == 'bye\n'
    d.start()
    assert Job(d.session(), 'j').exit() == '0'


def test_max_age_lets_a_job_say_goodbye(mount):
    d = mount(max_age='5')
    j = job(d.session()).start(BYE)
    j.wait_output('ready')
    d.session().wait_state('absent')
    assert read(f'{d.basedir}/alice/coder/bye') == 'bye\n'
    assert j.exit() == '0'


def test_eviction_ends_what_a_job_left_running(mount):
    d = mount(ttl='1')
    s = d.session()
    left = BYE.replace('echo ready', ': > ready')
    assert run(s, f"(setsid sh -c '{left}' >/dev/null 2>&1 &) ; until [ -e ready ]; do sleep 0.02; done")[0] == '0'
    s.wait_state('absent')
    assert read(f'{d.basedir}/alice/coder/bye') == 'bye\n'


def test_a_job_that_ignores_term_is_killed_after_the_grace(mount):
    s = mount(grace='1').session()
    j = job(s).start('trap "" TERM; echo ready; while :; do sleep 0.1; done')
    j.wait_output('ready')
    s.ctl('close')
    assert j.exit() == 'signal 9'


def test_files_are_used_while_a_close_waits_for_a_job(mount):
    """What the job writes to the end is seen as well, and what comes next waits for it."""
    s = mount(grace='60').session()
    write(s / 'f', 'here')
    j = job(s).start(f'trap "echo told > told; {GO}; echo bye > bye; exit 3" TERM; echo ready; while :; do sleep 0.02; done')
    j.wait_output('ready')
    closer = s.daemon.child(lambda: s.ctl('close'))
    wait_for(lambda: os.path.exists(s / 'told'))
    assert s.state() == 'closing' and sorted(os.listdir(s.path)) == ['f', 'told'] and read(s / 'f') == 'here'
    after = job(s, 'after').start('cat bye')
    write(s / 'go', '')
    assert j.exit() == '3' and read(s / 'bye') == 'bye\n'
    closer.result()
    assert (after.exit(), after.out()) == ('0', 'bye\n')
    s.wait_state('ready')


def test_after_a_close_the_next_job_starts_a_sandbox_again(fresh):
    assert output(fresh, 'echo one > /tmp/private; cat /tmp/private', name='a') == 'one\n'
    fresh.ctl('close')
    assert output(fresh, 'cat /tmp/private 2>/dev/null || echo gone', name='b') == 'gone\n'


def test_an_idle_workspace_is_closed_and_the_next_job_notices_nothing(mount):
    d = mount(ttl='1')
    s = d.session()
    write(s / 'file', 'kept')
    assert output(s, 'cat file', name='a') == 'kept'
    s.wait_state('absent')
    assert output(s, 'cat file', name='b') == 'kept'


def test_a_running_job_keeps_its_workspace(mount):
    d = mount(ttl='1')
    s = d.session()
    j = job(s).start('sleep 4; echo done')
    assert j.exit() == '0' and j.text('stdout') == 'done\n'


def test_busy_may_leave_jobs_out(mount):
    d = mount(ttl='1', busy='files')
    s = d.session()
    j = job(s).start('sleep 1000')
    s.wait_state('absent')
    assert j.exit() == 'signal 15'


def test_a_job_of_another_session_keeps_a_workspace_from_being_closed(mount):
    d = mount()
    a, b = d.session('alice/coder/s1'), d.session('alice/coder/s2')
    b.use()
    j = job(a).start('sleep 1000')
    j.wait_state('running')
    assert errno_of(b.ctl, 'close') == 'EBUSY'
    assert 's1' in b.error()
    assert errno_of(a.bind, 'other') == 'EBUSY'
    assert errno_of(a.ctl, 'fresh') == 'EBUSY'
    assert errno_of(os.rmdir, a.path) == 'EBUSY'
    assert errno_of(a.ctl, 'forget') == 'EBUSY'
    b.bind('other')
    b.bind('')
    b.ctl('close force')
    assert j.exit() == 'signal 15'


def test_forgetting_a_session_forgets_its_jobs(mount):
    d = mount()
    s = d.session()
    run(s, 'echo x')
    os.rmdir(s.path)
    assert os.listdir(f'{s.control}/jobs') == []
    assert files_kept(d) == []


def test_ended_jobs_are_kept_for_job_keep(mount):
    d = mount(job_keep='1')
    s = d.session()
    run(s, 'echo x', name='a')
    wait_for(lambda: os.listdir(f'{s.control}/jobs') == [])
    assert files_kept(d) == []
    assert errno_of(os.stat, f'{s.control}/jobs/a') == 'ENOENT'


# ── restarts ────────────────────────────────────────────────────────────────────────────────

def test_of_jobs_that_are_removed_as_soon_as_they_end_nothing_is_kept(mount):
    d = mount()
    s = d.session()
    for i in range(100):
        j = job(s, f'j{i}').start('exit 0' if i % 2 else 'echo x')
        assert j.exit() == '0'
        os.rmdir(j.dir)
    wait_for(lambda: files_kept(d) == [], what='the files to go')


def test_what_removed_jobs_left_for_others_goes_with_the_daemon(mount):
    d = mount()
    s = d.session()
    assert run(s, 'exit 0')[0] == '0'
    os.rmdir(Job(s, 'j').dir)
    kill_daemon(d)
    d.start()
    assert output(d.session(), 'echo again') == 'again\n'
    assert len([n for n in os.listdir(f'{d.top}/state/jobs') if n.endswith('.record')]) == 1


def kill_daemon(d):
    os.kill(d.pid, signal.SIGKILL)
    d.proc.wait(30)
    d.proc = None


def test_ended_jobs_are_there_after_a_restart(mount):
    d = mount()
    s = d.session()
    run(s, 'echo out; echo err >&2; exit 5 # ' + 'x' * 10000)
    before = {name: read(s.inner + f'/jobs/j/{name}') for name in ('cmd', 'stdout', 'stderr', 'log', 'exit', 'status')}
    d.restart()
    assert {name: read(s.inner + f'/jobs/j/{name}') for name in before} == before


@pytest.mark.parametrize('how', ['kill', 'detach'])
def test_a_job_goes_on_when_the_daemon_ends(mount, how):
    d = mount()
    s = d.session()
    j = job(s).start(f'echo one; echo begun >> lines; {GO}; seq 20000; echo end >&2; exit 6')
    j.wait_output('one')
    if how == 'kill':
        kill_daemon(d)
    else:
        d.stop(expect_exit=75, by=signal.SIGUSR1)
    write(f'{d.basedir}/alice/coder/go', '')
    d.start()
    assert j.exit() == '6'
    assert j.text('stdout') == 'one\n' + ''.join(f'{i}\n' for i in range(1, 20001))
    assert j.text('stderr') == 'end\n'
    assert read(s / 'lines') == 'begun\n'


def test_a_job_that_ended_while_no_daemon_ran_is_told(mount):
    d = mount()
    s = d.session()
    j = job(s).start(f'echo one; {GO}; echo two; : > ended; exit 4')
    j.wait_output('one')
    kill_daemon(d)
    write(f'{d.basedir}/alice/coder/go', '')
    wait_for(lambda: os.path.exists(f'{d.basedir}/alice/coder/ended'))
    d.start()
    assert j.exit() == '4' and j.text('stdout') == 'one\ntwo\n'


def test_a_job_that_prints_much_waits_for_the_next_daemon(mount):
    d = mount()
    s = d.session()
    j = job(s).start(f'echo one; {GO}; seq 1000000; exit 4')
    j.wait_output('one')
    kill_daemon(d)
    write(f'{d.basedir}/alice/coder/go', '')
    time.sleep(0.3)
    d.start()
    assert j.exit() == '4'
    assert j.text('stdout') == 'one\n' + ''.join(f'{i}\n' for i in range(1, 1000001))


def test_stdin_ends_when_the_daemon_dies(mount):
    d = mount()
    s = d.session()
    j = job(s)

    def feed():
        fd = os.open(j / 'stdin', os.O_WRONLY)
        j.start('cat; echo end')
        os.write(fd, b'half')
        signal.pause()

    child = Child(feed)
    wait_for(lambda: os.path.exists(j.dir) and j.text('log') == 'half')
    kill_daemon(d)
    d.start()
    assert j.exit() == '0' and j.text('stdout') == 'halfend\n'
    child.kill()


def test_a_job_whose_sandbox_died_with_the_daemon_is_lost_with_a_sentence(mount):
    d = mount()
    s = d.session()
    j = job(s).start('echo one; sleep 5432.1')
    j.wait_output('one')
    guest = guest_of(wait_for(lambda: processes_with('5432.1'))[-1])
    kill_daemon(d)
    os.kill(guest, signal.SIGKILL)
    wait_for(lambda: not processes_with('5432.1'))
    d.start()
    assert j.exit().startswith('error ')
    assert j.text('stdout') == 'one\n'
    assert output(s, 'echo again', name='k') == 'again\n'


@pytest.mark.local('the sandboxes of others are listed by their engine')
def test_what_a_dead_sandbox_left_is_not_removed_when_a_new_one_has_its_place(mount):
    """The start looks at the mark of an earlier sandbox, and a job comes in between."""
    d = mount()
    s = d.session()
    s.use()
    marks, name = f'{d.opts["state_dir"]}/sandbox', s.id()
    d.stop()
    os.mkfifo(f'{marks}/{name}')
    os.makedirs(f'{d.basedir}/.wsmfs/trash/left')
    d.start()
    with open(f'{marks}/{name}', 'wb', buffering=0) as mark:  # the start reads it now
        os.unlink(f'{marks}/{name}')
        j = job(s).start(f'echo one; {GO}; exit 6')
        j.wait_output('one')
        mark.write(f'1.1.no-such-boot\n{name}\nalice\ncoder\n\n'.encode())
    wait_for(lambda: not os.path.exists(f'{d.basedir}/.wsmfs/trash/left'))  # what comes behind it
    assert sorted(os.listdir(marks)) == [name, f'{name}.sock']
    kill_daemon(d)
    d.start()
    write(s / 'go', '')
    assert j.exit() == '6'


@pytest.mark.local('two mounts share a container, which is tested with those')
def test_two_mounts_of_a_base_directory_end_no_job_of_the_other(mount):
    one = mount(confine='off')
    two = mount.prepare(source=one.source)
    two.start(confine='off')
    j = job(one.session()).start(f'echo one; {GO}; exit 6')
    j.wait_output('one')
    assert output(two.session(), 'echo two') == 'two\n'
    two.session().ctl('close')
    two.stop()
    write(f'{one.basedir}/alice/coder/go', '')
    assert j.exit() == '6'


def ancestors(pid):
    found = set()
    while pid > 1:
        with open(f'/proc/{pid}/stat') as f:
            pid = int(f.read().rsplit(')', 1)[1].split()[1])
        found.add(pid)
    return found


def guest_of(pid):
    """The guest in whose sandbox a process runs."""
    for p in ancestors(pid):
        with open(f'/proc/{p}/cmdline', 'rb') as f:
            if b'wsm-guest' in f.read():
                return p
    raise AssertionError('no guest is above it')


def test_a_sandbox_that_dies_ends_its_jobs_and_the_next_one_works(fresh):
    j = job(fresh).start('echo one; sleep 5432.2')
    j.wait_output('one')
    sleeper = wait_for(lambda: processes_with('5432.2'))[-1]
    os.kill(guest_of(sleeper), signal.SIGKILL)
    assert j.exit().startswith('error ')
    assert output(fresh, 'echo again', name='k') == 'again\n'


def running_guest(s, number):
    """A job that ends when the file `go` is there, and the number of its guest's process."""
    j = job(s, 'running').start(f'sleep {number} & {GO}; kill $!; echo gone on')
    return j, guest_of(wait_for(lambda: processes_with(number))[-1])


@pytest.mark.slow
def test_a_guest_that_hangs_is_given_up_and_one_that_is_slow_is_not(mount):
    """A minute and a half each, so they hang at the same time."""
    d = mount()
    used, found, slow = (d.session(f'alice/{name}/s1') for name in ('used', 'found', 'slow'))
    lost, guest = running_guest(found, '5432.3')
    kill_daemon(d)
    os.kill(guest, signal.SIGSTOP)
    d.start()
    first = job(found, 'first').start('echo x')  # nobody has heard of that guest in this life
    kept, guest = running_guest(slow, '5432.4')
    os.kill(guest, signal.SIGSTOP)
    began = time.monotonic()
    write(slow / 'go', '')
    assert output(used, 'sleep 5432.5 >/dev/null 2>&1 & echo up') == 'up\n'
    os.kill(guest_of(wait_for(lambda: processes_with('5432.5'))[-1]), signal.SIGSTOP)
    asked = job(used, 'asked').start('echo never')
    time.sleep(max(0, began + 50 - time.monotonic()))  # it is the time in which it is slow
    os.kill(guest, signal.SIGCONT)
    assert kept.exit() == '0' and kept.text('stdout') == 'gone on\n'
    for j in (lost, asked):
        code = j.exit(200)
        assert code.startswith('error ') and 'hangs' in code, code
    assert first.exit(200) == '0' and first.text('stdout') == 'x\n'
    assert 'hangs' in used.error() and used.state() == 'failed'
    assert output(used, 'echo again', name='k') == 'again\n'
    assert (used.error(), used.state()) == ('', 'ready')
    assert not processes_with('5432.3') and not processes_with('5432.5')


def test_a_start_that_was_accepted_is_made_exactly_once(mount):
    """The daemon is killed at points between the close of cmd and the job's first sign of life."""
    d = mount()
    s = d.session()
    s.use()
    names = []
    for i in range(12):
        for k in range(3):
            names.append(f'j{i}-{k}')
            job(s, names[-1]).start(f'echo {names[-1]} >> lines; echo {names[-1]}')
        time.sleep(0.002 * i)
        kill_daemon(d)
        d.start()
    for name in names:
        j = Job(s, name)
        if not os.path.exists(j.dir):
            continue  # it was killed before the close was told to it
        if j.state() == 'new':
            continue
        assert j.exit() == '0', (name, j.exit())
        assert j.text('stdout') == f'{name}\n'
    lines = read(s / 'lines').split()
    assert len(lines) == len(set(lines)), 'a job ran twice'
    told = [n for n in names if os.path.exists(f'{s.inner}/jobs/{n}')]
    assert sorted(lines) == sorted(told)
    assert len(told) >= 12
    # a guest whose daemon died before it could write it down goes by itself
    wait_for(lambda: len(sandboxes_of(d.top)) <= 1)


def test_a_detached_daemon_leaves_the_limits_as_they_were(mount):
    d = mount(max_jobs=1)
    s = d.session()
    j = job(s).start('sleep 1000')
    j.wait_state('running')
    d.stop(expect_exit=75, by=signal.SIGUSR1)
    d.start()
    wait_for(lambda: s.status()['running_jobs'] == 1)
    assert errno_of(put, job(s, 'k') / 'cmd', 'true') == 'EDQUOT'
    wait_for(lambda: j.state() == 'running')
    j.ctl('kill')
    assert j.exit() == 'signal 15'


def test_a_mount_ends_while_a_guest_is_silent_that_was_asked_to_kill(mount):
    """The answer comes with the end of the link, when the connection to the kernel is about to be freed."""
    d = mount()
    j = job(d.session()).start('echo ready; exec sleep 7654.987')
    j.wait_output('ready')
    guest = parent_of(processes_with('7654.987')[0])
    os.kill(guest, signal.SIGSTOP)
    try:
        killer = Child(lambda: errno_of(j.ctl, 'kill'))
        wait_for(lambda: 'request_wait_answer' in read(f'/proc/{killer.pid}/stack'))
        d.stop(expect_exit=75, by=signal.SIGUSR1)
        assert killer.result(20) is not None
    finally:
        os.kill(guest, signal.SIGCONT)
    d.start()
    j = Job(d.session(), 'j')
    wait_for(lambda: errno_of(j.ctl, 'kill') != 'EAGAIN')
    assert j.exit() == 'signal 15'
