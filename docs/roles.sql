-- Rowlock's database roles, each with no more than its processes need; docs/roles.md says why. PostgreSQL 14 or newer.
--
-- Run this file as a superuser in the database that Rowlock uses: once before the first migration, which makes the roles
-- and the schema, and again after every migration, which gives them the tables. It may be run as often as you like.

-- 1. The roles. Each needs a password of its own: \password rowlock_web

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'rowlock_migrate', 'rowlock_web', 'rowlock_worker', 'rowlock_monitor', 'rowlock_enqueue'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I', name);
        END IF;
        EXECUTE format('ALTER ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS', name);
    END LOOP;
END $$;

-- Together they leave room below max_connections = 100. Count yours: a process of gunicorn has up to 16 sessions and
-- two of its own, each process of a worker up to three.
ALTER ROLE rowlock_migrate CONNECTION LIMIT 4;
ALTER ROLE rowlock_web CONNECTION LIMIT 40;
ALTER ROLE rowlock_worker CONNECTION LIMIT 40;
ALTER ROLE rowlock_monitor CONNECTION LIMIT 5;
ALTER ROLE rowlock_enqueue CONNECTION LIMIT 5; -- raise it with the number of your programs

-- What the pages ask for when they connect; behind a transaction-pooling proxy they cannot ask. A worker's own sessions
-- bring their limits along, and its handlers take as long as they take.
ALTER ROLE rowlock_web SET statement_timeout = '5s';
ALTER ROLE rowlock_web SET lock_timeout = '2s';
ALTER ROLE rowlock_web SET idle_in_transaction_session_timeout = '30s';
ALTER ROLE rowlock_web SET jit = off; -- compiling takes longer than any statement of a page
ALTER ROLE rowlock_monitor SET statement_timeout = '10s';
ALTER ROLE rowlock_monitor SET lock_timeout = '1s';
ALTER ROLE rowlock_monitor SET idle_in_transaction_session_timeout = '30s';
ALTER ROLE rowlock_monitor SET default_transaction_read_only = on;
-- A caller of rowlock_enqueue(ordered_by_commit => true) holds up others until it commits.
ALTER ROLE rowlock_enqueue SET statement_timeout = '10s';
ALTER ROLE rowlock_enqueue SET idle_in_transaction_session_timeout = '30s';

-- The page of locks shows what other roles' sessions do, and ends them. Superusers' sessions stay out of reach. A
-- supervisor of workers watches for alerts about the same when no web server does.
GRANT pg_read_all_stats TO rowlock_web, rowlock_worker, rowlock_monitor;
GRANT pg_signal_backend TO rowlock_web;

-- What PostgreSQL lets everybody do in a database, and what fills its disk whatever rights a role has: temporary tables,
-- large objects, messages in the WAL. Only PUBLIC's right can be taken back. Other programs of this database that need
-- one of these keep it by a grant of yours: GRANT TEMPORARY ON DATABASE shop TO theirs;

DO $$
DECLARE
    function regprocedure;
BEGIN
    EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO rowlock_migrate, rowlock_worker', current_database());
    FOR function IN
        SELECT oid FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace
            AND (proname ~ '^lo_' OR proname IN ('loread', 'lowrite', 'pg_logical_emit_message'))
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', function);
    END LOOP;
END $$;

-- 2. The schema. Migrations alone create anything in it, and it alone is in the path of the roles. For another name,
-- change these two lines.

CREATE SCHEMA IF NOT EXISTS rowlock AUTHORIZATION rowlock_migrate;
SET search_path = rowlock;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'rowlock_migrate', 'rowlock_web', 'rowlock_worker', 'rowlock_monitor', 'rowlock_enqueue'] LOOP
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), name);
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), name);
        EXECUTE format('ALTER ROLE %I IN DATABASE %I SET search_path = %I', name, current_database(), current_schema());
    END LOOP;
    -- A table of a later migration can be read by the pages at once; all else waits until this file names it.
    EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE rowlock_migrate IN SCHEMA %I '
        'GRANT SELECT ON TABLES TO rowlock_web', current_schema());
END $$;

-- 3. The tables, once they are there. What an earlier version of this file gave and this one does not is taken back.
-- No function but three at the end runs with more rights than its caller's, so the others stay open to all who may use
-- the schema.

DO $$
BEGIN
    IF to_regclass('tasks_task') IS NULL THEN
        RAISE NOTICE 'Migrate as rowlock_migrate now, then run this file again.';
        RETURN;
    END IF;
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM rowlock_web, rowlock_worker, rowlock_monitor, '
        'rowlock_enqueue', current_schema());
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA %I FROM rowlock_web, rowlock_worker, rowlock_monitor, '
        'rowlock_enqueue', current_schema());

    -- Web: the pages, and the commands that operators type. Sees every table.
    GRANT SELECT ON
        auth_permission, axes_accessfailurelog, axes_accesslog, dashboard_demorow, dashboard_labrun, django_content_type,
        django_migrations, tasks_archive, tasks_attemptlog, tasks_bucket, tasks_commandrun, tasks_lockwaiter, tasks_progress, tasks_refusedwrite,
        tasks_throughput,
        tasks_throughputslot, tasks_throughputtotal
        TO rowlock_web;
    -- Who logs in, and the pages on which superusers look after accounts.
    GRANT SELECT, INSERT, UPDATE, DELETE ON
        auth_group, auth_group_permissions, auth_user, auth_user_groups, auth_user_user_permissions,
        axes_accessattempt, axes_accessattemptexpiration, dashboard_apicount, dashboard_apirequest, dashboard_apitoken,
        dashboard_installation, django_session
        TO rowlock_web;
    GRANT SELECT, INSERT, DELETE ON django_admin_log TO rowlock_web; -- with the account that goes
    -- What operators do: never deleting a task, an attempt or an account.
    GRANT SELECT, INSERT ON orders_entry, tasks_attempt TO rowlock_web;
    -- The audit: when a line was written and by which role, the database says.
    GRANT SELECT, INSERT (actor, source, action, target, reason, version_before, version_after)
        ON tasks_intervention TO rowlock_web, rowlock_worker;
    GRANT SELECT, INSERT, UPDATE ON
        tasks_bulkrun, tasks_epoch, tasks_limit, tasks_queue, tasks_recoveryfailure, tasks_task TO rowlock_web;
    GRANT SELECT, UPDATE ON orders_account, tasks_worker TO rowlock_web;
    GRANT SELECT, DELETE ON tasks_expectedcommand TO rowlock_web;
    GRANT SELECT, INSERT, UPDATE, DELETE ON
        dashboard_acknowledgement, dashboard_alertchannel, dashboard_savedview, dashboard_threshold, orders_order,
        tasks_schedule, tasks_submittedform TO rowlock_web;
    -- Alerts: whichever of both watches holds a lock and records incidents; a worker sends them, and keeps how that went.
    GRANT SELECT, INSERT, UPDATE ON tasks_lock TO rowlock_web;
    GRANT SELECT ON dashboard_tablesize, dashboard_threshold TO rowlock_worker;
    GRANT SELECT, UPDATE (sent_at, failed_at, failure) ON dashboard_alertchannel TO rowlock_worker;
    GRANT SELECT, INSERT, UPDATE ON dashboard_incident TO rowlock_web, rowlock_worker;
    GRANT USAGE ON SEQUENCE dashboard_incident_id_seq, rowlock_fence TO rowlock_web, rowlock_worker;
    GRANT SELECT, INSERT ON tasks_tick TO rowlock_web; -- of schedules that are run by hand
    -- The history of locks, which the web server keeps.
    GRANT SELECT, INSERT, UPDATE ON dashboard_lockwait TO rowlock_web;
    GRANT SELECT, INSERT ON dashboard_deadlocks TO rowlock_web;
    -- The sizes of our tables, which it samples and drops after eight days.
    GRANT SELECT, INSERT, DELETE ON dashboard_tablesize TO rowlock_web;
    GRANT USAGE ON SEQUENCE
        auth_group_id_seq, auth_group_permissions_id_seq, auth_user_groups_id_seq, auth_user_id_seq,
        auth_user_user_permissions_id_seq, axes_accessattempt_id_seq, dashboard_alertchannel_id_seq,
        dashboard_apirequest_id_seq, dashboard_apitoken_id_seq, dashboard_deadlocks_id_seq,
        dashboard_installation_id_seq, dashboard_lockwait_id_seq, dashboard_savedview_id_seq,
        dashboard_tablesize_id_seq, django_admin_log_id_seq, orders_entry_id_seq, orders_order_id_seq,
        tasks_attempt_id_seq, tasks_bulkrun_id_seq, tasks_intervention_id_seq, tasks_task_id_seq, tasks_tick_id_seq
        TO rowlock_web;

    -- Worker: run_worker, and the commands that cron runs. Sees neither people nor their sessions.
    GRANT SELECT, INSERT ON orders_entry TO rowlock_worker;
    GRANT SELECT, UPDATE ON orders_account, orders_order TO rowlock_worker;
    GRANT SELECT, INSERT, UPDATE ON
        tasks_epoch, tasks_limit, tasks_queue, tasks_schedule, tasks_throughputtotal
        TO rowlock_worker;
    GRANT SELECT, INSERT, UPDATE, DELETE ON
        tasks_attemptlog, tasks_bucket, tasks_commandrun, tasks_expectedcommand, tasks_lock, tasks_progress,
        tasks_recoveryfailure, tasks_task,
        tasks_throughput, tasks_tick, tasks_worker
        TO rowlock_worker;
    GRANT SELECT, INSERT, DELETE ON tasks_lockwaiter, tasks_throughputslot TO rowlock_worker;
    GRANT SELECT, INSERT ON tasks_archive TO rowlock_worker;
    GRANT INSERT ON tasks_attempt, tasks_refusedwrite TO rowlock_worker;
    -- It writes lines of pages for the actor of the bulk run in hand, whom it cannot change.
    GRANT SELECT, DELETE,
        UPDATE (started_at, finished_at, total, looked, done, asked, refused, refusals, cursor)
        ON tasks_bulkrun TO rowlock_worker;
    -- What prune_history deletes, it locks before, which takes UPDATE.
    GRANT SELECT, UPDATE, DELETE ON
        dashboard_acknowledgement, dashboard_apicount, dashboard_apirequest, dashboard_deadlocks, dashboard_incident,
        dashboard_lockwait, tasks_attempt, tasks_refusedwrite
        TO rowlock_worker;
    GRANT SELECT ON django_migrations TO rowlock_worker;
    GRANT USAGE ON SEQUENCE
        orders_entry_id_seq, rowlock_fence, tasks_attempt_id_seq, tasks_attemptlog_id_seq, tasks_commandrun_id_seq,
        tasks_intervention_id_seq,
        tasks_lockwaiter_id_seq, tasks_refusedwrite_id_seq, tasks_task_id_seq, tasks_throughput_id_seq,
        tasks_throughputslot_id_seq, tasks_tick_id_seq
        TO rowlock_worker;

    -- Monitor: /metrics, queue_status and the show_ commands. Reads numbers and names: no arguments, results or texts of
    -- errors of tasks, nobody's address, no account, no session.
    GRANT SELECT ON
        dashboard_acknowledgement, dashboard_deadlocks, dashboard_lockwait, dashboard_tablesize, dashboard_threshold,
        django_migrations,
        tasks_bucket, tasks_epoch, tasks_expectedcommand, tasks_limit, tasks_lock, tasks_lockwaiter, tasks_queue,
        tasks_recoveryfailure, tasks_refusedwrite, tasks_throughput, tasks_throughputtotal, tasks_tick, tasks_worker
        TO rowlock_monitor;
    GRANT SELECT (name, task_path, queue_name, priority, cron, every_seconds, timezone, missed, overlap, ends_at, paused,
        paused_at, paused_by, problem, next_at, ended_at, last_at, last_outcome, last_task_id, held_by_task_id, declared,
        version, edition, created_at)
        ON tasks_schedule TO rowlock_monitor;
    GRANT SELECT (id, task_path, queue_name, priority, status, version, created_at, run_after, started_at, finished_at,
        attempt, max_attempts, claimed_by, finished_by, ordering_key, cancel_requested_at, unique_key, unique_while,
        concurrency_key, concurrency_limit, rate_key, rate, period_seconds, slot, queue_slot, traceparent, xmax, ctid, tableoid)
        ON tasks_task TO rowlock_monitor;
    GRANT SELECT (id, task_id, number, worker_id, outcome, exception_class, started_at, finished_at,
        queue_name, release, fingerprint)
        ON tasks_attempt TO rowlock_monitor;
    GRANT SELECT (id, name, hostname, pid, fence, held_by, started_at, finished_at, exit_status, outcome)
        ON tasks_commandrun TO rowlock_monitor;
    GRANT SELECT (id, version, placed_at, shipped_at, shipped_email_sent, email_state, email_owner, email_since,
        email_attempts, email_next_at, xmax, ctid, tableoid)
        ON orders_order TO rowlock_monitor;
    GRANT SELECT (id, version, xmax, ctid, tableoid) ON orders_account TO rowlock_monitor;

    -- Enqueue: programs in other languages, and yours that only enqueue. They reach no table; the function checks what
    -- they pass, with its owner's rights and search_path, and a trigger refuses what pages enqueue under rights.
    -- A migration that makes the function anew takes all this back, until the file is run again.
    ALTER FUNCTION rowlock_enqueue SECURITY DEFINER;
    REVOKE ALL ON FUNCTION rowlock_enqueue FROM PUBLIC;
    GRANT EXECUTE ON FUNCTION rowlock_enqueue TO rowlock_web, rowlock_worker, rowlock_enqueue;

    -- Only the owner of the archive makes and drops its months: archive_tasks of cron asks these two.
    ALTER FUNCTION rowlock_make_archive SECURITY DEFINER;
    ALTER FUNCTION rowlock_drop_archive SECURITY DEFINER;
    REVOKE ALL ON FUNCTION rowlock_make_archive, rowlock_drop_archive FROM PUBLIC;
    GRANT EXECUTE ON FUNCTION rowlock_make_archive, rowlock_drop_archive TO rowlock_worker;
END $$;

RESET search_path;
