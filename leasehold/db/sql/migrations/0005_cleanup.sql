-- A helper of the first limits that nothing has called since migration 3. It stayed one release longer, because a claim
-- that was under way while the functions changed could still call it.
drop function if exists limits_exist();
