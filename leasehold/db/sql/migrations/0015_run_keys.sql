-- API servers and programs of this release run a schedule now under an idempotency key: schedule_run_now_v2. Nothing is
-- stored differently.
comment on column schedules.queue is 'where its jobs wait; one that is put without a queue gets what the task of its kind declares';
