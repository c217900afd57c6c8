-- JobSubmitPlugins=lua: lets users write --gres=scuda:N, as for GPUs of a node, where licences count them.
--
-- The gres is of no_consume type on all nodes, so that srun may ask for it; what a job takes is the licence, as many as
-- it has nodes times N. Only the controller runs this, and nothing that a user writes is more than compared here.

local licence = "scuda"
local gres = "scuda"

local unset = 0xfffffffe -- how Slurm says that a number was not given

-- wanted gives how many GPUs a node is to have by a list such as gres:gpu:1,gres:scuda:2; nil and why where it cannot
-- be had.
local function wanted(list)
  local total
  for word in string.gmatch(list or "", "[^,]+") do
    word = string.gsub(word, "^%s*gres[:/]", "")
    if word == gres then
      total = (total or 0) + 1
    elseif string.sub(word, 1, #gres + 1) == gres .. ":" or string.sub(word, 1, #gres + 1) == gres .. "=" then
      local count = string.match(string.sub(word, #gres + 2), "^%d+$")
      if not count or #count > 4 then
        return nil, "write --gres=" .. gres .. ":N, with a number and nothing else"
      end
      total = (total or 0) + tonumber(count)
    end
  end
  return total or 0
end

-- taken gives how many of our licence a list such as scuda:2,matlab names; nil: it does not name it.
local function taken(list)
  for word in string.gmatch(list or "", "[^,;]+") do
    local name, count = string.match(word, "^%s*([^:@%s]+)[^:]*:?(%d*)")
    if name == licence then
      return tonumber(count) or 1
    end
  end
  return nil
end

local function refuse(text)
  slurm.log_user("scuda: " .. text)
  return slurm.ESLURM_INVALID_LICENSES or slurm.ERROR
end

function slurm_job_submit(job, _, _)
  for _, field in ipairs({"tres_per_job", "tres_per_socket", "tres_per_task"}) do
    local n, why = wanted(job[field])
    if n ~= 0 then
      return refuse(why or ("GPUs are asked for by node: --gres=" .. gres .. ":N"))
    end
  end
  local n, why = wanted(job.tres_per_node)
  if not n then
    return refuse(why)
  end
  local licences = taken(job.licenses)
  if n == 0 and not licences then
    return slurm.SUCCESS
  end
  -- One number of nodes, so that the number of licences is right. Who does not say how many gets one.
  local nodes = job.min_nodes
  if not nodes or nodes >= unset or nodes < 1 then
    nodes = 1
    job.min_nodes = 1
  end
  job.max_nodes = nodes
  if n == 0 then
    if licences % nodes ~= 0 then
      return refuse(string.format("%d licences %s cannot be shared by %d nodes", licences, licence, nodes))
    end
    return slurm.SUCCESS
  end
  if licences and licences ~= n * nodes then
    return refuse(string.format("--gres=%s:%d on %d nodes takes %d licences %s, not %d; leave --licenses out", gres, n,
      nodes, n * nodes, licence, licences))
  end
  if not licences then
    local more = string.format("%s:%d", licence, n * nodes)
    if (job.licenses or "") ~= "" then
      more = job.licenses .. "," .. more
    end
    job.licenses = more
  end
  return slurm.SUCCESS
end

-- A job that waits keeps its number of GPUs and nodes: what was counted at submission would be wrong.
function slurm_job_modify(job, old, _, _)
  if not taken(old.licenses) then
    return slurm.SUCCESS
  end
  if (job.tres_per_node or "") ~= "" or job.licenses ~= nil and taken(job.licenses) ~= taken(old.licenses) then
    return refuse("the GPUs of a job that is there cannot be changed; cancel it and submit another one")
  end
  if job.min_nodes and job.min_nodes < unset and job.min_nodes ~= old.min_nodes then
    return refuse("the nodes of a job with GPUs cannot be changed; cancel it and submit another one")
  end
  return slurm.SUCCESS
end

return slurm.SUCCESS
