# SPDX-License-Identifier: Apache-2.0
"""The command wsm: every subcommand but exec and what belongs to jobs, which are in test_wsm_exec.py."""

import json
import os
import re
import shutil
import subprocess

import pytest

from harness import (ALICE_GID, ALICE_UID, CHECKOUT, control, descriptors_of, environment, read, run, sh, wait_for,
                     write)
from wsm_command import WSM, at_terminal, fails, start, stopped, wsm


@pytest.fixture
def s(fresh):
    """A session of the shared mount."""
    return fresh


# ── which session a path means ──────────────────────────────────────────────────────────────

def named(*words, **more):
    """What status says of the path: USER/AGENT/SESSION."""
    st = json.loads(wsm('status', '--json', *words, **more).stdout)
    return '/'.join(st[k] for k in ('user', 'agent', 'session'))


@pytest.mark.parametrize('form', ['{0}', '{0}/', '{0}//sub/./file', '{0}/no/such/thing', '{0}/.wsm', '{0}/.wsm/status',
                                  '{0}/sub/..', '{0}/../s1', '{0}/sub/../../s1/x'])
def test_a_path_in_a_session_means_that_session(s, form):
    assert named(form.format(s.path)) == s.names
    assert s.state() == 'absent'


def test_a_path_may_lead_through_the_managers_directory(s):
    assert named(s.control) == s.names
    assert named(f'{s.control}/status') == s.names


def test_a_relative_path_starts_where_one_is(s):
    os.makedirs(s / 'a/b')
    assert named('.', cwd=s / 'a/b') == s.names
    assert named(cwd=s / 'a/b') == s.names
    assert named('../..', cwd=s / 'a/b') == s.names
    assert named('../../../s2', cwd=s / 'a/b') == s.names[:-1] + '2'


def test_links_outside_the_mount_are_followed(s, workdir):
    os.symlink(s.path, f'{workdir}/one')
    os.symlink('one', f'{workdir}/two')
    os.mkdir(f'{workdir}/dir')
    os.symlink(f'../../{os.path.basename(workdir)}/two', f'{workdir}/dir/three')
    assert named(f'{workdir}/dir/three') == s.names
    assert named(f'{workdir}/dir/three/sub') == s.names
    assert named('dir/three/../s2', cwd=workdir) == s.names[:-1] + '2'


def test_a_link_in_a_session_does_not_choose_the_session(s):
    other = s.names.replace('/s1', '/s9')
    os.symlink('../s9', s / 'planted')
    os.symlink(f'/{other}', s / 'absolute')
    assert named(s / 'planted') == s.names
    assert named(s / 'planted/x') == s.names
    assert named(s / 'absolute') == s.names
    assert named(s / 'planted/..') == s.names


def test_links_that_go_round_are_refused(workdir):
    os.symlink('b', f'{workdir}/a')
    os.symlink('a', f'{workdir}/b')
    assert 'Too many levels' in fails('status', f'{workdir}/a')


@pytest.mark.parametrize('path, sentence', [('/', 'is in no mounted wsmfs'), ('', 'empty'),
                                            ('/nowhere/at/all', 'No such file')])
def test_a_path_elsewhere_is_refused(path, sentence):
    assert sentence in fails('pin', path)


def test_a_path_above_a_session_is_refused_where_a_session_is_wanted(s):
    for path in (s.daemon.mnt, os.path.dirname(s.path), f'{s.daemon.mnt}/.wsm'):
        assert 'above a session' in fails('close', path)


def test_a_name_that_does_not_exist_is_not_made(s):
    assert 'no such session' in fails('pin', f'{s.daemon.mnt}/alice/coder/package.json')
    assert not os.path.lexists(f'{s.daemon.mnt}/alice/coder/package.json')


def test_names_of_any_form_are_found(s):
    names = 'ünïcode/agent of mine/-s 1'
    path = f'{s.daemon.mnt}/{names}'
    assert named(f'{path}/x') == names
    assert named('--', '-s 1', cwd=os.path.dirname(path)) == names


def test_a_mount_point_with_a_blank_is_found(mount):
    d = mount.prepare(name='with blank\\and ünïcode').start()
    assert named(f'{d.mnt}/alice/coder/s1') == 'alice/coder/s1'


@pytest.mark.root
def test_a_bind_mount_of_a_session_means_it(s, workdir):
    os.makedirs(s / 'inner')
    where = f'{workdir}/elsewhere'
    os.mkdir(where)
    for part, found in ((s.path, s.names), (os.path.dirname(s.path), s.names)):
        run('mount', '--bind', part, where)
        try:
            below = where if part == s.path else f'{where}/s1'
            assert named(f'{below}/inner/x') == found
            wsm('pin', below)
            assert s.status()['pinned']
            wsm('unpin', below)
        finally:
            run('umount', where)


@pytest.mark.root
def test_a_bind_mount_of_a_part_of_a_session_has_no_control_directory(s, workdir):
    os.makedirs(s / 'inner')
    where = f'{workdir}/elsewhere'
    os.mkdir(where)
    run('mount', '--bind', s / 'inner', where)
    try:
        assert 'only a part' in fails('status', where)
    finally:
        run('umount', where)


# ── status ──────────────────────────────────────────────────────────────────────────────────

def test_status_shows_what_the_file_says(s):
    s.use()
    text = wsm('status', s.path).stdout
    shown = dict(re.match(r'(\S+):\s+(.*)$', line).groups() for line in text.splitlines())
    st = s.status()
    assert set(shown) == set(st)
    assert shown['id'] == st['id'] and shown['state'] == 'ready' and shown['pinned'] == 'no'
    assert shown['error'] == '-' and shown['sessions'] == s.names


def test_status_of_a_mount_is_the_managers(s):
    for path in (s.daemon.mnt, f'{s.daemon.mnt}/alice', f'{s.daemon.mnt}/.wsm'):
        assert json.loads(wsm('status', '--json', path).stdout)['isolation'] == 'per_agent'
    assert 'workspaces ready:' in wsm('status', s.daemon.mnt).stdout


def test_status_of_a_dead_mount_says_so(mount):
    d = mount()
    d.kill()
    assert 'is dead' in fails('status', f'{d.mnt}/alice/coder/s1')
    assert 'is dead' in fails('close', f'{d.mnt}/alice/coder/s1')
    d.start()


# ── verbs ───────────────────────────────────────────────────────────────────────────────────

def test_touch_pin_unpin_and_ttl(s):
    wsm('touch', s.path)
    wsm('pin', s / 'deep/in/it')
    assert s.status()['pinned'] is True
    wsm('unpin', s.path)
    assert s.status()['pinned'] is False
    wsm('ttl', s.path, '10m')
    assert s.status()['ttl_s'] == 600
    wsm('ttl', s.path, 'default')
    assert s.status()['ttl_s'] == 3600


def test_a_verb_that_fails_shows_the_sentence_of_error(s):
    text = fails('ttl', s.path, 'soon')
    assert 'ttl "soon"' in text and read(f'{s.control}/error').strip() in text
    assert text.startswith(f'wsm: {s.names}: ')


def test_close_keeps_the_files(s):
    write(s / 'a', 'kept')
    wsm('close', s.path)
    assert s.state() == 'absent'
    assert read(s / 'a') == 'kept'


def test_close_of_a_shared_busy_workspace_needs_force(s):
    other = s.daemon.session(s.names[:-1] + '2').use()
    write(s / 'a', '')
    with open(s / 'a'):
        assert 'other sessions have this workspace' in fails('close', s.path)
        assert other.names in fails('close', s.path)
        wsm('close', '--force', s.path)


def test_destroy_removes_the_files_without_a_question_where_nobody_can_answer(s):
    write(s / 'a', 'gone')
    wsm('destroy', s.path)
    assert not os.path.exists(s / 'a')


def test_destroy_asks_at_a_terminal(s):
    write(s / 'a', 'x')
    for answer in (b'n\n', b'\n', b'\x04'):
        status, shown = at_terminal([WSM, 'destroy', s.path], answer, b'[y/N]')
        assert status == 1 and b'nothing was destroyed' in shown
        assert s.id().encode() in shown and s.names.encode() in shown
    assert os.path.exists(s / 'a')
    status, shown = at_terminal([WSM, 'destroy', s.path], b'y\n', b'[y/N]')
    assert status == 0, shown
    assert not os.path.exists(s / 'a')


@pytest.mark.parametrize('option', ['-y', '--yes', '-f', '--force'])
def test_destroy_does_not_ask_where_it_was_told(s, option):
    write(s / 'a', 'x')
    status, shown = at_terminal([WSM, 'destroy', option, s.path])
    assert (status, shown) == (0, b'')
    assert not os.path.exists(s / 'a')


def test_destroy_of_a_shared_workspace_needs_force(s):
    other = s.daemon.session(s.names[:-1] + '2').use()
    write(s / 'a', 'x')
    assert other.names in fails('destroy', '-y', s.path)
    assert os.path.exists(s / 'a')
    wsm('destroy', s.path, '--force')
    assert not os.path.exists(other / 'a')


def test_fresh_prints_the_id_it_has_made(s):
    write(s / 'a', 'x')
    old = s.id()
    new = wsm('fresh', s.path).stdout.strip()
    assert new == s.id() != old and re.fullmatch('[0-9a-f]{32}', new)
    assert os.listdir(s.path) == []


def test_bind_takes_an_id_another_session_or_nothing(s):
    derived = s.id()
    wsm('bind', s.path, 'the-teams-own')
    assert s.id() == 'the-teams-own'
    leader = s.daemon.session(s.names.replace('agent', 'leader')).use()
    wsm('bind', s.path, f'{leader.path}/any/thing')
    assert s.id() == leader.id()
    wsm('bind', s.path, './s1', cwd=os.path.dirname(leader.path))
    assert s.id() == leader.id()
    wsm('bind', '--unbind', s.path)
    assert s.id() == derived


def test_a_bad_id_is_refused_in_words(s):
    text = fails('bind', s.path, 'Not_An_Id')
    assert read(f'{s.control}/error').strip() in text
    assert wsm('bind', s.path, check=2).stdout == ''
    assert wsm('bind', '--unbind', s.path, 'x', check=2).stdout == ''


def test_forget_forgets_the_name(s):
    names = s.names + '.made'
    os.mkdir(f'{s.daemon.mnt}/{names}')
    wsm('forget', f'{s.daemon.mnt}/{names}')
    assert not os.path.exists(f'{s.daemon.mnt}/{names}')
    assert 'no such session' in fails('forget', f'{s.daemon.mnt}/{names}')


# ── provision ───────────────────────────────────────────────────────────────────────────────

def test_provision_makes_ready(s):
    wsm('provision', s.path)
    assert s.state() == 'ready'
    assert wsm('provision', s.path).stdout == ''


def test_provision_shows_each_step(mount):
    d = mount.test_backend()
    control(d, 'default', 'delay_ms 300')
    s = d.session()
    shown = wsm('provision', s.path).stdout
    steps = [json.loads(line)['step'] for line in read(f'{s.control}/progress').splitlines()]
    assert steps and [line.split(':')[0] for line in shown.splitlines()] == steps
    wsm('close', s.path)
    # the steps of the first time are not shown again
    assert len(wsm('provision', s.path).stdout.splitlines()) == len(steps)
    wsm('close', s.path)
    assert wsm('provision', '--quiet', s.path).stdout == ''


def test_provision_that_fails_says_why(mount):
    d = mount.test_backend()
    control(d, 'default', 'delay_ms 100', 'fail ENXIO no such image here')
    d.expect('no such image here')
    assert 'no such image here' in wsm('provision', d.session().path, check=1).stderr
    control(d, 'default', 'delay_ms 1')
    wsm('provision', d.session().path)


def test_provision_nowait_only_begins(mount):
    d = mount.test_backend()
    control(d, 'default', 'hang')
    s = d.session()
    wsm('provision', '--nowait', s.path)
    assert s.state() == 'provisioning'
    control(d, 'default', 'delay_ms 1')
    s.wait_state('ready', 'failed')


def test_provision_waits_for_a_close_that_goes_on(mount):
    d = mount.test_backend()
    control(d, 'default', 'close_delay_ms 700')
    s = d.session().use()
    closing = start(d, 'close', s.path)
    s.wait_state('closing')
    wsm('provision', s.path)
    assert s.state() == 'ready'
    assert closing.wait(60) == 0


def test_provision_goes_on_after_it_was_stopped(mount):
    d = mount.test_backend()
    control(d, 'default', 'hang')
    s = d.session()
    child = start(d, 'provision', s.path)
    s.wait_state('provisioning')
    for _ in range(5):
        stopped(child)
    assert child.poll() is None
    control(d, 'default', 'delay_ms 1')
    assert child.wait(60) == 0
    assert s.state() == 'ready'


@pytest.mark.parametrize('verb', ['close', 'destroy'])
def test_close_and_destroy_go_on_after_they_were_stopped(mount, verb):
    d = mount.test_backend()
    control(d, 'default', 'close_delay_ms 1500')
    s = d.session().use()
    child = start(d, verb, s.path)
    s.wait_state('closing')
    for _ in range(3):
        stopped(child)
    assert child.wait(60) == 0
    assert s.state() == 'absent'
    assert read(f'{d.top}/control/log').count(f'{verb} ') == 1


def test_close_that_fails_after_it_was_stopped_says_so(mount):
    d = mount.test_backend()
    control(d, 'default', 'close_delay_ms 1000', 'close_fail EIO it is stuck')
    d.expect('it is stuck')
    s = d.session().use()
    child = start(d, 'close', s.path, stderr=subprocess.PIPE, text=True)
    s.wait_state('closing')
    stopped(child)
    assert 'it is stuck' in child.communicate(timeout=60)[1]
    assert child.returncode == 1
    control(d, 'default', 'delay_ms 1')


# ── ps ──────────────────────────────────────────────────────────────────────────────────────

def rows(text):
    heading, *lines = [re.split(r'\s{2,}', line.strip()) for line in text.splitlines()]
    return [dict(zip(heading, line)) for line in lines]


def test_ps_lists_the_live_workspaces_of_the_mounts_that_are_named(daemon, mount):
    a = daemon.session('alice/coder/s1').use()
    daemon.session('alice/coder/s2').use()
    pinned = daemon.session('bob/helper/s1').use()
    wsm('pin', pinned.path)
    found = rows(wsm('ps', daemon.mnt).stdout)
    assert [(r['USER'], r['AGENT'], r['BACKEND'], r['STATE'], r['JOBS']) for r in found] == \
        [('alice', 'coder', 'local', 'ready', '0'), ('bob', 'helper', 'local', 'ready', '0')]
    assert re.fullmatch(r'(59|60)m', found[0]['EXPIRES']) and found[1]['EXPIRES'] == '-'
    objects = json.loads(wsm('ps', '--json', daemon.mnt).stdout)
    assert [o['id'] for o in objects] == [a.id(), pinned.id()]
    assert objects[0]['mount'] == daemon.mnt and objects[1]['expires'] is None
    assert set(objects[0]) == {'mount', 'id', 'user', 'agent', 'session', 'backend', 'state', 'idle_s', 'expires',
                               'jobs'}


def test_ps_lists_all_mounts_and_goes_on_after_a_dead_one(mount):
    one, dead, two = mount(), mount(), mount()
    one.session().use()
    two.session().use()
    dead.session().use()
    dead.kill()
    done = wsm('ps', '--json', check=None)
    assert {one.mnt, two.mnt} <= {o['mount'] for o in json.loads(done.stdout)}
    assert done.returncode == 1 and dead.mnt in done.stderr
    dead.start()
    assert {one.mnt, two.mnt} <= {r['MOUNT'] for r in rows(wsm('ps', one.mnt, two.mnt).stdout)}


def test_ps_is_empty_where_nothing_is_live(daemon):
    daemon.session().status()
    assert rows(wsm('ps', daemon.mnt).stdout) == []
    assert json.loads(wsm('ps', '--json', daemon.mnt).stdout) == []


@pytest.mark.root
def test_ps_of_a_tenant_lists_his_own(mount):
    d = mount(allow_other=True, config=f'[user alice]\nuid = {ALICE_UID}\ngid = {ALICE_GID}\n')
    a = d.session('alice/coder/s1').use()
    d.session('alice/coder/s2').use()
    d.session('bob/coder/s1').use()
    found = json.loads(wsm('ps', '--json', d.mnt, user=ALICE_UID, group=ALICE_GID, extra_groups=[]).stdout)
    assert [(o['user'], o['id'], o['state']) for o in found] == [('alice', a.id(), 'ready')]
    assert 'Permission denied' in fails('status', f'{d.mnt}/bob/coder/s1', user=ALICE_UID, group=ALICE_GID,
                                        extra_groups=[])


# ── events ──────────────────────────────────────────────────────────────────────────────────

class Followed:
    """A wsm that prints on and on."""

    def __init__(self, daemon, *words):
        self.child = start(daemon, *words, stdout=subprocess.PIPE)
        self.text = ''
        os.set_blocking(self.child.stdout.fileno(), False)

    def shows(self, pattern):
        def look():
            self.text += (self.child.stdout.read() or b'').decode()
            return re.search(pattern, self.text, re.M)
        return wait_for(look, what=pattern)

    def end(self):
        self.child.terminate()
        self.child.wait(30)
        self.child.stdout.close()


def opened(daemon, child):
    """Waits until it reads the events: those from before are not shown."""
    wait_for(lambda: f'{daemon.mnt}/.wsm/events' in descriptors_of(child.pid))


def test_events_are_followed_also_after_it_was_stopped(daemon):
    e = Followed(daemon, 'events', '-f', daemon.mnt)
    opened(daemon, e.child)
    s = daemon.session().use()
    e.shows(r'^\d{4}-\S+Z  ready\s.*alice/coder/s1')
    stopped(e.child)
    s.ctl('close')
    e.shows(r'^\S+  closed\s')
    e.end()


def test_events_as_the_mount_gives_them(daemon):
    e = Followed(daemon, 'events', '--json', daemon.mnt)
    opened(daemon, e.child)
    daemon.session().use()
    e.shows('"event":"ready"')
    assert all(json.loads(line) for line in e.text.splitlines())
    e.end()


def test_events_end_with_the_mount(daemon):
    child = start(daemon, 'events', daemon.mnt, stderr=subprocess.PIPE, text=True)
    opened(daemon, child)
    daemon.kill()
    assert daemon.mnt in child.communicate(timeout=60)[1]
    assert child.returncode == 1
    daemon.start()


# ── doctor ──────────────────────────────────────────────────────────────────────────────────

def test_doctor_says_what_works_and_what_is_missing(daemon):
    done = wsm('doctor', check=None)
    lines = done.stdout.splitlines()
    backends = re.search(r'^ok +backend +.*\(there are (.*)\)$', done.stdout, re.M)[1].split(', ')
    assert {'local', 'docker'} <= set(backends)
    for what in ('kernel', 'libfuse', 'passthrough', 'inotify watches', 'docker', 'kubernetes', 'e2b'):
        wanted = what not in ('docker', 'kubernetes', 'e2b') or what in backends
        assert any(re.match(rf'(ok|note|missing)\s+{what}\s', line) for line in lines) == wanted, what
    assert f'{daemon.mnt} answers' in done.stdout
    missing = [line for line in lines if line.startswith('missing')]
    assert done.returncode == (1 if missing else 0)
    assert lines[-1] == ('Local workspaces would not work here yet.' if missing else 'Local workspaces work here.')


@pytest.mark.root
def test_doctor_without_bubblewrap_says_how_to_get_it(workdir):
    write(f'{workdir}/no-program', '')
    os.chmod(f'{workdir}/no-program', 0o644)
    hide = f'mount --bind {workdir}/no-program /usr/bin/bwrap; exec "$@"'
    done = subprocess.run(['unshare', '-m', 'sh', '-ec', hide, 'sh', WSM, 'doctor'], capture_output=True, text=True,
                          timeout=100, check=False, env=environment())
    assert done.returncode == 1 and done.stdout.endswith('\nLocal workspaces would not work here yet.\n'), done
    assert re.search(r'^missing +confinement .*\n .*install the package bubblewrap', done.stdout, re.M)


def test_doctor_looks_at_what_would_be_mounted(workdir):
    os.mkdir(f'{workdir}/open', 0o777)
    os.chmod(f'{workdir}/open', 0o777)
    assert 'chmod 700' in wsm('doctor', f'local:{workdir}/open', f'{workdir}/mnt', check=1).stdout


def test_doctor_knows_credentials_and_engines(workdir):
    write(f'{workdir}/kubeconfig', '')
    done = wsm('doctor', check=None, env={'E2B_API_KEY': 'secret-key', 'KUBECONFIG': f'{workdir}/kubeconfig',
                                          'DOCKER_HOST': f'unix://{workdir}/no.sock'})
    there = re.search(r'\(there are (.*)\)', done.stdout)[1].split(', ')
    assert bool(re.search(r'^ok +e2b', done.stdout, re.M)) == ('e2b' in there) and 'secret-key' not in done.stdout
    found = re.search(rf'^ok +kubernetes .*{workdir}/kubeconfig', done.stdout, re.M)
    assert bool(found) == ('kubernetes' in there)
    assert re.search(rf'^note +docker .*{workdir}/no.sock', done.stdout, re.M)


def test_doctor_tells_of_a_dead_mount(mount):
    d = mount()
    d.kill()
    assert f'{d.mnt} is dead' in wsm('doctor', check=None).stdout
    d.start()


# ── the command line ────────────────────────────────────────────────────────────────────────

def commands():
    return re.findall(r'^  ([a-z]+) {2,}\S', wsm('--help').stdout, re.M)


def help_options(command):
    text = wsm(command, '--help').stdout
    return {m[1] for m in re.finditer(r'^  (?:-\w, |    )--([a-z]+)', text, re.M)} - {'help'}


def test_help_is_there_for_each_command():
    assert {'exec', 'ps', 'status', 'close', 'destroy', 'provision', 'pin', 'unpin', 'touch', 'bind', 'fresh', 'forget',
            'jobs', 'logs', 'events', 'doctor'} <= set(commands())
    for command in commands():
        text = wsm(command, '--help').stdout
        assert text.startswith(f'usage: wsm {command}')
        assert wsm('help', command).stdout == text
        assert wsm(command, '-h').stdout == text


def test_version():
    assert re.fullmatch(r'wsm \d+\.\d+\.\d+\n', wsm('--version').stdout)


@pytest.mark.parametrize('words', [[], ['nonsense'], ['close'], ['close', '--nonsense', '/x'], ['close', '/x', '/y'],
                                   ['status', '--json=x', '/x'], ['help', 'nonsense'], ['-x']])
def test_a_wrong_command_line_is_refused(words):
    done = wsm(*words, check=2)
    assert done.stdout == '' and done.stderr.startswith('wsm: ')


@pytest.mark.parametrize('words', [['exec'], ['exec', '/x'], ['exec', '-e'], ['exec', '--nonsense', '/x', 'y'],
                                   ['exec', '/x', '--'], ['exec', '/', '--', 'true']])
def test_exec_that_cannot_run_ends_with_125(words):
    assert wsm(*words, check=125).stderr.startswith('wsm: ')


def test_output_that_cannot_be_written_is_a_failure(s):
    with open('/dev/full', 'wb') as full:
        assert 'No space left' in wsm('status', s.path, check=1, stdout=full).stderr


def test_the_manual_and_the_completion_know_each_command_and_option():
    manual = read(f'{CHECKOUT}/docs/man/wsm.1')
    completion = read(f'{CHECKOUT}/mount-helpers/completion/wsm')
    for command in commands():
        item = re.search(rf'^\.It Cm {command}\b(.*?)(?=^\.It Cm |^\.Sh |\Z)', manual, re.M | re.S)
        assert item, command
        offered = re.search(rf'^\s*{command}\) echo "([^"]*)"', completion, re.M)
        in_completion = {w[2:].rstrip('=') for w in offered[1].split() if w.startswith('--')} if offered else set()
        in_manual = set(re.findall(r'Fl Fl ([a-z]+)', item[1]))
        assert help_options(command) == in_manual, command
        assert help_options(command) == in_completion, command
    assert set(re.search(r'commands="([^"]*)"', completion)[1].split()) == set(commands())


def test_the_manual_page_is_well_formed():
    if not shutil.which('mandoc'):
        pytest.skip('mandoc is not on this machine')
    run('mandoc', '-Tlint', '-Wwarning', f'{CHECKOUT}/docs/man/wsm.1')


def complete(line, cwd):
    """What the completion offers at the end of the line."""
    script = f'''source {CHECKOUT}/mount-helpers/completion/wsm
        COMP_LINE={line!r} COMP_POINT={len(line)}
        read -ra COMP_WORDS <<<"$COMP_LINE"; [[ $COMP_LINE == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        compopt() {{ :; }}
        _wsm; printf '%s\\n' "${{COMPREPLY[@]}}"'''
    env = dict(os.environ, PATH=f'{os.path.dirname(WSM)}:{os.environ["PATH"]}')
    return sh(script, cwd=cwd, env=env).split()


def test_the_completion_offers_commands_options_paths_and_jobs(workdir):
    os.mkdir(f'{workdir}/some-dir')
    assert complete('wsm pro', workdir) == ['provision']
    assert complete('wsm destroy --f', workdir) == ['--force']
    assert complete('wsm close so', workdir) == ['some-dir']
    assert '-i' in complete('wsm exec -', workdir)
