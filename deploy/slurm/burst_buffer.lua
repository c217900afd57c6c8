-- BurstBufferType=burst_buffer/lua, for sites that want leases taken on the controller: nothing has to run on the nodes.
-- Beside it lies burst_buffer.conf. Users write "#SCUDA pool=scuda capacity=2" into a script, or say it by --bb.
--
-- Numbers are all that this hands to a shell. It is for Lua 5.1 and later.

local scuda = "/usr/bin/scuda slurm --config /etc/scuda/slurm.yaml"
local places = 8 -- GPUs that jobs may have at once: the places of all servers together
local most = 64 -- for one job

-- verb runs one of scuda slurm's. It gives what that says.
local function verb(name, job, more)
  local command = string.format("%s %s --job %d %s", scuda, name, job, more or "")
  local pipe = io.popen(command .. ' 2>&1; echo "status $?"', "r") -- close() of Lua 5.1 does not say how it ended
  local said, status = string.match(pipe:read("*a"), "^(.*)status (%d+)%s*$")
  pipe:close()
  if status == "0" then
    return slurm.SUCCESS, said
  end
  slurm.log_error("burst_buffer.lua: %s", said)
  return slurm.ERROR, said
end

function slurm_bb_pools()
  return slurm.SUCCESS, string.format('{"pools":[{"id":"scuda","granularity":1,"quantity":%d}]}', places)
end

function slurm_bb_job_process(_)
  return slurm.SUCCESS
end

-- The lease is taken when Slurm is about to start the job. An error holds the job, with what was said as its reason.
function slurm_bb_setup(job, uid, _, pool, size, _)
  size = tonumber(size) or 0 -- Slurm gives texts
  if pool ~= "scuda" or size < 1 or size > most then
    return slurm.ERROR, string.format("write #SCUDA pool=scuda capacity=N, with N from 1 to %d", most)
  end
  return verb("setup", job, string.format("--uid %d --gpus %d", uid, size))
end

-- The job's environment.
function slurm_bb_paths(job, _, path)
  local rc, said = verb("paths", job)
  if rc ~= slurm.SUCCESS then
    return rc, said
  end
  local file = io.open(path, "w")
  if not file then
    return slurm.ERROR, "cannot write the job's variables"
  end
  file:write(said)
  file:close()
  return slurm.SUCCESS
end

-- It is called for every job that had one, cancelled ones too.
function slurm_bb_job_teardown(job, _, _)
  return verb("end", job)
end

function slurm_bb_data_in(_, _)
  return slurm.SUCCESS
end

function slurm_bb_real_size(_)
  return slurm.SUCCESS
end

function slurm_bb_pre_run(_, _)
  return slurm.SUCCESS
end

function slurm_bb_post_run(_, _)
  return slurm.SUCCESS
end

function slurm_bb_data_out(_, _)
  return slurm.SUCCESS
end

function slurm_bb_get_status(...)
  return slurm.SUCCESS, ""
end
