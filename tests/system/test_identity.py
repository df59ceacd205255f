# SPDX-License-Identifier: Apache-2.0
"""Which sessions share a workspace, and that nobody else gets into it."""

import hashlib
import os
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import (as_alice, as_bob, errno_of, mount_fails, put, read, write, ALICE_UID, BOB_UID)

POLICIES = ['per_agent', 'per_session', 'per_user']
# The parts of (user, agent, session) that count.
COUNTS = {'per_agent': 2, 'per_session': 3, 'per_user': 1}


def derived(policy, names):
    text = '/'.join([policy, *names.split('/')[:COUNTS[policy]]])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# ── policies ────────────────────────────────────────────────────────────────────────────────

@pytest.mark.parametrize('policy', POLICIES)
@pytest.mark.parametrize('names', ['alice/coder/s1', 'a/b/c', 'ä/日本/🦀', 'alice@example.com/x y/-s'])
def test_an_id_is_the_documented_hash_of_policy_and_names(mount, policy, names):
    daemon = mount(isolation=policy)
    assert daemon.session(names).id() == derived(policy, names)


@pytest.mark.parametrize('policy, names, wanted', [
    ('per_agent', 'alice/coder/s', '6ecd6692afe6f0d3'), ('per_user', 'alice/coder/s', '982aa9b33217069a'),
    ('per_agent', 'zoë/助手/s', 'd9aefa1b260203c2'), ('per_user', 'bob/x/y', '883053c3e4594c5b')])
def test_ids_can_be_those_of_agentscope(mount, policy, names, wanted):
    daemon = mount(id_scheme='agentscope', isolation=policy)
    assert daemon.session(names).id() == wanted


def test_where_agentscopes_ids_collide_nothing_is_shared(mount):
    """Both pairs give 42ea9368dc124a88 there."""
    daemon = mount(id_scheme='agentscope')
    first, second = daemon.session('a::b/c/s'), daemon.session('a/b::c/s')
    written = [errno_of(write, s / 'secret', s.names) for s in [first, second]]
    assert None not in written or errno_of(read, second / 'secret') is not None or \
        read(first / 'secret') != read(second / 'secret')


@pytest.mark.parametrize('policy', POLICIES)
def test_the_user_is_part_of_identity_in_every_policy(mount, policy):
    daemon = mount(isolation=policy)
    alice, bob = daemon.session('alice/shared/s1'), daemon.session('bob/shared/s1')
    write(alice / 'x', 'secret')
    assert errno_of(os.stat, bob / 'x') == 'ENOENT'
    assert os.listdir(bob.path) == []
    assert os.stat(alice.path).st_ino != os.stat(bob.path).st_ino
    assert alice.id() != bob.id()


@pytest.mark.parametrize('policy, other_session, other_agent',
                         [('per_agent', True, False), ('per_session', False, False),
                          ('per_user', True, True)])
def test_a_policy_says_which_sessions_share(mount, policy, other_session, other_agent):
    daemon = mount(isolation=policy)
    write(daemon.session('alice/coder/s1') / 'x', policy)
    assert os.path.exists(daemon.session('alice/coder/s2') / 'x') == other_session
    assert os.path.exists(daemon.session('alice/tester/s1') / 'x') == other_agent
    assert not os.path.exists(daemon.session('bob/coder/s1') / 'x')


NAME = st.text(st.characters(blacklist_categories=('Cs', 'Cc'), blacklist_characters='/'),
               min_size=1, max_size=12).filter(
                   lambda n: not n.startswith('.') and len(n.encode()) <= 255)
# Names that look as if they could be joined in two ways.
TRICKY = st.sampled_from(['a', 'b', 'ab', 'a:b', 'a::b', ':', '::', 'a ', ' a', 'a-b', 'ba', 'a%2fb', 'a\\b'])
ANY_NAME = st.one_of(NAME, TRICKY)


@pytest.fixture(scope='module')
def any_names(top):
    from conftest import Factory
    factory = Factory(f'{top}/any-names')
    yield factory(names='any')
    factory.finish()


SEEN = {}


@settings(max_examples=400, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(user=ANY_NAME, agent=ANY_NAME, session=ANY_NAME)
def test_no_two_tenants_ever_share_an_id(any_names, user, agent, session):
    found = any_names.session(f'{user}/{agent}/{session}').id()
    assert re.fullmatch('[0-9a-f]{16}', found)
    assert SEEN.setdefault(found, (user, agent)) == (user, agent)


def test_the_same_options_give_the_same_id_on_another_machine(mount):
    first, second = mount(), mount()
    assert first.session().id() == second.session().id()
    assert read(f'{first.basedir}/.wsmfs/instance') != read(f'{second.basedir}/.wsmfs/instance')


# ── binding ─────────────────────────────────────────────────────────────────────────────────

def test_a_worker_that_binds_its_leaders_id_shares_the_workspace(daemon):
    leader, worker = daemon.session('alice/leader/s1'), daemon.session('alice/worker/s2')
    write(leader / 'plan', 'x')
    worker.bind(leader.id())
    assert read(worker / 'plan') == 'x'
    assert os.stat(worker / 'plan').st_ino == os.stat(leader / 'plan').st_ino
    assert os.stat(worker.path).st_ino == os.stat(leader.path).st_ino
    assert sorted(worker.status()['sessions']) == ['alice/leader/s1', 'alice/worker/s2']


def test_closing_from_one_session_while_another_has_an_open_file_is_ebusy_and_says_why(daemon):
    leader, worker = daemon.session('alice/leader/s1').use(), daemon.session('alice/worker/s2')
    worker.bind(leader.id())
    worker.use()
    with open(leader / 'plan', 'w', encoding='utf-8'):
        assert errno_of(worker.ctl, 'close') == 'EBUSY'
        assert 'open' in worker.error()
        assert worker.state() == 'ready'


def test_an_explicit_id_lies_in_a_directory_of_its_own(daemon, s):
    s.bind('team-7')
    assert s.id() == 'team-7'
    write(s / 'f', 'x')
    assert read(f'{daemon.basedir}/.wsmfs/id/team-7/f') == 'x'
    other = daemon.session('alice/tester/s9')
    other.bind('team-7')
    assert read(other / 'f') == 'x'


def test_binding_changes_what_the_session_shows_at_once(daemon, s):
    write(s / 'old', 'x')
    assert os.listdir(s.path) == ['old']
    s.bind('other')
    assert os.listdir(s.path) == []
    assert errno_of(os.stat, s / 'old') == 'ENOENT'
    write(s / 'new', 'x')
    s.bind('')
    assert os.listdir(s.path) == ['old']
    assert errno_of(os.stat, s / 'new') == 'ENOENT'
    s.bind('other')
    assert os.listdir(s.path) == ['new']


def test_a_binding_survives_restarts(daemon, s):
    s.bind('team-7')
    write(s / 'f', 'x')
    for _ in range(2):
        daemon.restart()
        assert s.id() == 'team-7'
        assert read(s / 'f') == 'x'


def test_a_binding_survives_a_crash_right_after_the_write(daemon, s):
    daemon.expect('.*')
    s.bind('team-7')
    daemon.kill()
    daemon.start()
    assert s.id() == 'team-7'


def test_unbinding_survives_restarts(daemon, s):
    own = s.id()
    s.bind('team-7')
    s.bind('')
    assert s.id() == own
    daemon.restart()
    assert s.id() == own


def test_a_bound_session_is_listed_and_not_provisioned(daemon, s):
    s.bind('team-7')
    assert os.listdir(f'{daemon.mnt}/alice/coder') == ['s1']
    assert s.state() == 'absent'


def test_binding_is_ebusy_while_the_session_has_an_open_file(daemon, s):
    own = s.id()
    with open(s / 'f', 'w', encoding='utf-8'):
        assert errno_of(s.bind, 'team-7') == 'EBUSY'
        assert errno_of(s.ctl, 'fresh') == 'EBUSY'
        assert s.id() == own
    os.stat(s / 'f')


def test_another_sessions_open_file_does_not_stop_a_session_that_was_not_used_from_binding(daemon, s):
    other = daemon.session('alice/coder/s2')
    with open(other / 'f', 'w', encoding='utf-8'):
        s.bind('team-7')
    assert s.id() == 'team-7'


BAD_IDS = ['UPPER', 'a_b', 'a.b', '-a', 'a-', '-', 'x' * 41, 'a b', 'ä', '../x', 'a/b', '.', '..', 'a\0b',
           'id\nid2', 'ABCDEF0123456789']


@pytest.mark.parametrize('bad', BAD_IDS, ids=ascii)
def test_a_malformed_id_is_einval_and_changes_nothing(fresh, bad):
    own = fresh.id()
    assert errno_of(fresh.bind, bad) == 'EINVAL'
    assert fresh.id() == own
    assert fresh.error() != ''


@pytest.mark.parametrize('good', ['a', '7', 'x' * 40, 'a-b-c', 'a--b', '0123456789abcde',
                                  '0123456789abcdef0', '0123456789abcdeg'])
def test_a_well_formed_id_can_be_bound(fresh, good):
    mine = f'{good}'
    fresh.bind(mine)
    assert fresh.id() == mine
    fresh.bind('')


def test_a_derived_id_cannot_be_bound_before_its_owner_comes(daemon):
    victim, thief = daemon.session('bob/secret/s1'), daemon.session('alice/coder/s1')
    assert errno_of(thief.bind, derived('per_agent', 'bob/secret/s1')) == 'EINVAL'
    assert errno_of(thief.bind, '0123456789abcdef') == 'EINVAL'
    assert thief.error() != ''
    write(victim / 'f', 'x')
    assert errno_of(os.stat, thief / 'f') == 'ENOENT'


@pytest.mark.root
def test_a_derived_id_of_another_user_cannot_be_bound_after_its_owner_came(tenants):
    bob, alice = tenants.session('bob/secret/s1'), tenants.session('alice/coder/s1')
    as_bob(lambda: write(bob / 'f', 'x'))
    assert as_alice(lambda: errno_of(alice.bind, derived('per_agent', 'bob/secret/s1'))) == 'EPERM'
    assert as_alice(lambda: errno_of(os.stat, alice / 'f')) == 'ENOENT'


@pytest.fixture
def tenants(mount):
    return mount(allow_other=True, config=f'''
[user alice]
uid = {ALICE_UID}
[user bob]
uid = {BOB_UID}
''')


@pytest.mark.root
def test_an_explicit_id_belongs_to_the_user_who_bound_it_first(tenants):
    alice, bob = tenants.session('alice/coder/s1'), tenants.session('bob/coder/s1')
    as_alice(lambda: alice.bind('team-7'))
    assert as_bob(lambda: errno_of(bob.bind, 'team-7')) == 'EPERM'
    as_alice(lambda: alice.bind(''))
    assert as_bob(lambda: errno_of(bob.bind, 'team-7')) == 'EPERM'
    tenants.restart()
    assert as_bob(lambda: errno_of(bob.bind, 'team-7')) == 'EPERM'


@pytest.mark.root
def test_who_can_enter_the_other_users_directory_may_bind_across_users(tenants):
    alice, bob = tenants.session('alice/coder/s1'), tenants.session('bob/coder/s1')
    as_alice(lambda: write(alice / 'f', 'x'))
    bob.bind(alice.id())  # as root
    assert bob.id() == alice.id()


@pytest.mark.root
def test_bind_across_users_allows_it_to_everybody(mount):
    daemon = mount(allow_other=True, bind_across_users=True, config=f'''
[user alice]
uid = {ALICE_UID}
[user bob]
uid = {BOB_UID}
''')
    alice, bob = daemon.session('alice/coder/s1'), daemon.session('bob/coder/s1')
    as_alice(lambda: alice.use() and None)
    as_bob(lambda: bob.bind(derived('per_agent', 'alice/coder/s1')))
    assert bob.id() == derived('per_agent', 'alice/coder/s1')


def test_an_own_derived_id_can_be_bound_and_means_the_own_workspace(daemon):
    leader, worker = daemon.session('alice/leader/s1'), daemon.session('alice/worker/s1')
    write(leader / 'f', 'x')
    worker.bind(derived('per_agent', 'alice/leader/s1'))
    assert read(worker / 'f') == 'x'


# ── fresh ───────────────────────────────────────────────────────────────────────────────────

def test_fresh_binds_a_new_empty_workspace(daemon, s):
    write(s / 'old', 'x')
    own = s.id()
    s.ctl('fresh')
    first = s.id()
    assert re.fullmatch('[0-9a-f]{32}', first)
    assert os.listdir(s.path) == []
    write(s / 'new', 'x')
    s.ctl('fresh')
    assert s.id() not in (first, own)
    assert os.listdir(s.path) == []
    s.bind('')
    assert read(s / 'old') == 'x'


def test_fresh_leaves_the_other_sessions_alone(daemon, s):
    other = daemon.session('alice/coder/s2')
    write(s / 'old', 'x')
    s.ctl('fresh')
    assert read(other / 'old') == 'x'
    assert os.listdir(s.path) == []


def test_a_fresh_workspace_survives_restarts(daemon, s):
    s.ctl('fresh')
    minted = s.id()
    write(s / 'f', 'x')
    daemon.restart()
    assert s.id() == minted
    assert read(s / 'f') == 'x'


# ── what is recorded beside the workspaces ──────────────────────────────────────────────────

@pytest.mark.parametrize('first, second', [('per_agent', 'per_session'), ('per_session', 'per_user'),
                                           ('per_user', 'per_agent')])
def test_a_base_directory_of_another_policy_is_refused_with_what_to_do(mount, first, second):
    daemon = mount(isolation=first)
    write(daemon.session() / 'f', 'x')
    daemon.stop()
    daemon.opts['isolation'] = second
    code, text = mount_fails(daemon)
    assert code == 1
    assert first in text and second in text and 'isolation' in text


def test_another_instance_than_that_of_the_base_directory_is_refused(mount):
    daemon = mount(instance='farm-1')
    daemon.stop()
    daemon.opts['instance'] = 'farm-2'
    code, text = mount_fails(daemon)
    assert code == 1
    assert 'farm-1' in text and 'farm-2' in text


def test_the_instance_is_made_at_random_and_stays(daemon):
    first = read(f'{daemon.basedir}/.wsmfs/instance').strip()
    assert re.fullmatch('[0-9a-f]{16}', first)
    daemon.restart()
    assert read(f'{daemon.basedir}/.wsmfs/instance').strip() == first


# ── nobody gets into another tenant's directory ─────────────────────────────────────────────

@pytest.mark.parametrize('name', ['..', '.', '.wsmfs', '.wsm', '..%2fbob', '%2e%2e', '..\\bob', 'bob/', '/bob',
                                  '․․', '‥', '．．', 'bob ', ' bob', 'BOB', 'bob\u200b'], ids=ascii)
def test_no_name_of_one_tenant_leads_to_another(daemon, name):
    bob = daemon.session('bob/coder/s1')
    write(bob / 'secret', 'x')
    for path in [f'{daemon.mnt}/{name}/coder/s1/secret', f'{daemon.mnt}/alice/{name}/s1/secret',
                 f'{daemon.mnt}/alice/coder/{name}/secret', f'{daemon.mnt}/alice/coder/s1/{name}/secret']:
        resolved = os.path.normpath(path)
        if resolved == bob / 'secret':
            continue  # the path says so itself
        assert errno_of(read, path) is not None, path


def test_agents_named_like_another_users_directories_stay_apart(mount):
    daemon = mount(isolation='per_session', names='any')
    write(daemon.session('a/b/c') / 'x', '1')
    for names in ['a/b/x', 'a/c/b', 'b/a/c', 'c/b/a', 'ab/c/x', 'a/bc/x', 'id/a/b']:
        assert os.listdir(daemon.session(names).path) == []


def test_explicit_ids_and_users_of_that_name_stay_apart(daemon):
    s = daemon.session('id/coder/s1')
    write(s / 'x', '1')
    other = daemon.session('alice/coder/s1')
    other.bind('coder')
    assert os.listdir(other.path) == []


def test_many_lines_or_more_than_a_page_bind_nothing(fresh):
    own = fresh.id()
    assert errno_of(put, f'{fresh.control}/id', 'a\nb\n') == 'EINVAL'
    assert errno_of(put, f'{fresh.control}/id', 'a' * 5000) == 'EFBIG'
    assert fresh.id() == own
