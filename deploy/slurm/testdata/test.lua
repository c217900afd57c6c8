-- What Slurm's plugins do with job_submit.lua and burst_buffer.lua, without Slurm. It prints what is wrong.
local NO = 0xfffffffe
local failed = false
local told

slurm = {SUCCESS = 0, ERROR = -1, log_user = function(text) told = text end, log_error = function() end}

local function wrong(what, ...)
  failed = true
  print(string.format(what, ...))
end

local function check(what, got, want)
  if got ~= want then
    wrong("%s: %s, not %s", what, tostring(got), tostring(want))
  end
end

assert(dofile("job_submit.lua") == slurm.SUCCESS)

-- gres, licences and nodes as asked for; licences and nodes as they are to be, or a part of what is refused
local cases = {
  {gres = "gres:scuda:2", licences = "scuda:2", nodes = 1},
  {gres = "gres:scuda", licences = "scuda:1", nodes = 1},
  {gres = "scuda=3", licences = "scuda:3", nodes = 1},
  {gres = "gres:scuda:2", min = 3, max = 4, licences = "scuda:6", nodes = 3},
  {gres = "gres:gpu:4,gres:scuda:1", has = "matlab:2", licences = "matlab:2,scuda:1", nodes = 1},
  {gres = "gres:scuda:2", min = 2, has = "scuda:4", licences = "scuda:4", nodes = 2},
  {gres = "gres:scuda:2", has = "scuda:1", refused = "takes 2 licences"},
  {gres = "gres:scuda:2", min = 2, has = "matlab,scuda", refused = "takes 4 licences"},
  {gres = "gres:scuda:h200:2", refused = "write --gres=scuda:N"},
  {gres = "gres:scuda:2k", refused = "write --gres=scuda:N"},
  {gres = "gres:scuda:99999", refused = "write --gres=scuda:N"},
  {gres = "gres:scuda:$(reboot)", refused = "write --gres=scuda:N"},
  {gres = "gres:myscuda:2", max = 4},
  {gres = "gres:gpu:1", has = "matlab"},
  {},
  {has = "scuda:2", licences = "scuda:2", nodes = 1},
  {has = "scuda:3", min = 2, refused = "cannot be shared by 2 nodes"},
  {has = "scuda_vram:80"},
  {task = "gres:scuda:1", refused = "asked for by node"},
}
for i, c in ipairs(cases) do
  told = nil
  local job = {tres_per_node = c.gres, tres_per_task = c.task, licenses = c.has, min_nodes = c.min or NO,
    max_nodes = c.max or NO}
  local rc = slurm_job_submit(job, {}, 1000)
  local what = string.format("case %d (%s)", i, c.gres or c.has or "nothing")
  if c.refused then
    check(what, rc, slurm.ERROR)
    if not told or not string.find(told, c.refused, 1, true) then
      wrong("%s: the user is told %s", what, tostring(told))
    end
  else
    check(what, rc, slurm.SUCCESS)
    check(what .. ": licences", job.licenses, c.licences or c.has)
    check(what .. ": at least", job.min_nodes, c.nodes or c.min or NO)
    check(what .. ": at most", job.max_nodes, c.nodes or c.max or NO)
    check(what .. ": gres", job.tres_per_node, c.gres)
  end
end

local changes = {
  {{}, slurm.SUCCESS},
  {{licenses = "scuda:2,matlab"}, slurm.SUCCESS},
  {{licenses = "scuda:1"}, slurm.ERROR},
  {{licenses = ""}, slurm.ERROR},
  {{tres_per_node = "gres:scuda:4"}, slurm.ERROR},
  {{min_nodes = 1}, slurm.ERROR},
  {{min_nodes = NO}, slurm.SUCCESS},
  {{min_nodes = 2}, slurm.SUCCESS},
}
for i, c in ipairs(changes) do
  check("change " .. i, slurm_job_modify(c[1], {licenses = "scuda:2", min_nodes = 2}, {}, 1000), c[2])
end
check("another's change", slurm_job_modify({tres_per_node = "gpu:1"}, {licenses = "matlab"}, {}, 1000), slurm.SUCCESS)

-- burst_buffer.lua: the commands that it runs
local ran, said, ok = {}, "", true
io.popen = function(command)
  ran[#ran + 1] = command
  return {read = function() return said .. "status " .. (ok and 0 or 1) .. "\n" end, close = function() return true end}
end
dofile("burst_buffer.lua")
local _, pools = slurm_bb_pools()
check("pools", pools, '{"pools":[{"id":"scuda","granularity":1,"quantity":8}]}')
check("setup", slurm_bb_setup("7", "1000", "100", "scuda", "2", "/x"), slurm.SUCCESS)
local status = ' 2>&1; echo "status $?"'
check("its command", ran[1],
  "/usr/bin/scuda slurm --config /etc/scuda/slurm.yaml setup --job 7 --uid 1000 --gpus 2" .. status)
check("another pool", slurm_bb_setup(7, 1000, 100, "other", 2, "/x"), slurm.ERROR)
check("too many", slurm_bb_setup(7, 1000, 100, "scuda", 65, "/x"), slurm.ERROR)
check("no number", slurm_bb_setup(7, 1000, 100, "scuda", "2;x", "/x"), slurm.ERROR)
check("commands", #ran, 1)
if pcall(slurm_bb_setup, "7; reboot", 1000, 100, "scuda", 2, "/x") then
  wrong("a job that is no number is handed to a shell")
end
said = "SCUDA_SERVER=a:1\n"
local path = os.tmpname()
check("paths", slurm_bb_paths("7", "/x", path), slurm.SUCCESS)
check("variables", io.open(path):read("*a"), said)
os.remove(path)
check("teardown", slurm_bb_job_teardown(7, "/x", "true"), slurm.SUCCESS)
check("its command", ran[3], "/usr/bin/scuda slurm --config /etc/scuda/slurm.yaml end --job 7 " .. status)
ok, said = false, "no place"
local rc, why = slurm_bb_setup(7, 1000, 100, "scuda", 2, "/x")
check("a setup that fails", rc, slurm.ERROR)
check("its reason", why, "no place")
for _, name in ipairs({"job_process", "real_size", "data_in", "data_out", "pre_run", "post_run", "get_status"}) do
  check(name, _G["slurm_bb_" .. name](7), slurm.SUCCESS)
end

os.exit(failed and 1 or 0)
