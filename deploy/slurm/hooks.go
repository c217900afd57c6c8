package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Hook is one call of Slurm's.
type Hook struct {
	Site      *Site
	Log       io.Writer // what Slurm's log gets
	Cluster   string
	Node      string // as Slurm calls it
	Partition string
	Job       uint32
	User      string // "": the number
	UID       int
	Restart   string
}

// onController is the folder of jobs whose leases the controller has taken.
const onController = "controller"

// maxLabel is how long the label of a lease may be.
const maxLabel = 100

// FromEnv reads what Slurm says in the environment of its prologs and epilogs.
func FromEnv(site *Site, log io.Writer, getenv func(string) string) (*Hook, error) {
	h := &Hook{Site: site, Log: log, Cluster: cmp.Or(site.Cluster, getenv("SLURM_CLUSTER_NAME"), "cluster"),
		Node: getenv("SLURMD_NODENAME"), Partition: getenv("SLURM_JOB_PARTITION"), User: getenv("SLURM_JOB_USER"),
		Restart: cmp.Or(getenv("SLURM_JOB_RESTART_COUNT"), "0")}
	job, err := strconv.ParseUint(getenv("SLURM_JOB_ID"), 10, 32)
	if err != nil || job == 0 {
		return nil, fmt.Errorf("SLURM_JOB_ID is %.40q: Slurm's daemons call this (docs/slurm.md)", getenv("SLURM_JOB_ID"))
	}
	uid, err := strconv.ParseUint(getenv("SLURM_JOB_UID"), 10, 31)
	if err != nil {
		return nil, fmt.Errorf("SLURM_JOB_UID is %.40q", getenv("SLURM_JOB_UID"))
	}
	h.Job, h.UID = uint32(job), int(uid)
	switch {
	case !isWord.MatchString(h.Cluster) || len(h.Cluster) > maxCluster:
		return nil, fmt.Errorf("the name of the cluster, %.60q, cannot be part of a label; set cluster: in the site's file",
			h.Cluster)
	case h.Node != "" && (!isWord.MatchString(h.Node) || len(h.Node) > maxLabel):
		return nil, fmt.Errorf("SLURMD_NODENAME is %.120q", h.Node)
	}
	return h, nil
}

func (h *Hook) say(format string, args ...any) {
	fmt.Fprintf(h.Log, "scuda: job %d: %s\n", h.Job, oneLine(fmt.Sprintf(format, args...)))
}

// tenant is in whose name the job runs.
func (h *Hook) tenant() (string, error) {
	user := cmp.Or(h.User, strconv.Itoa(h.UID))
	if strings.Contains(h.Site.Tenant, "%u") && !isWord.MatchString(user) {
		return "", fmt.Errorf("%w: the user's name, %.60q, cannot be part of a tenant's", ErrJob, user)
	}
	return strings.ReplaceAll(h.Site.Tenant, "%u", user), nil
}

// Prolog has the lease taken that the job's part on this node needs. A job that gets none fails when its first task is
// to start, and says why (see [Hook.TaskProlog]); an error here is one for which Slurm takes the node out of service.
func (h *Hook) Prolog(ctx context.Context) error {
	if p := h.Site.Partitions; len(p) > 0 && !slices.Contains(p, h.Partition) {
		return nil
	}
	if h.Node == "" {
		return errors.New("SLURMD_NODENAME is not set: this is for Prolog= of slurm.conf")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(h.Site.Timeout))
	defer cancel()
	l, err := lock(ctx, h.Site.folder(h.Node, h.Job))
	if err != nil {
		return err
	}
	defer l.unlock()
	if h.holds(ctx, l) {
		return nil
	}
	err = h.prepare(ctx, l)
	if err == nil {
		return nil
	}
	h.say("%v", err)
	return l.keep(&record{Job: h.Job, Restart: h.Restart, Error: oneLine(err.Error())})
}

// holds says whether the job has its lease already. One of an earlier run of the job is given back.
func (h *Hook) holds(ctx context.Context, l *locked) bool {
	r, err := readRecord(l.path)
	if err != nil || r == nil || r.Lease == "" {
		return false
	}
	list, err := h.Site.leases(ctx, &r.Server, h.Cluster)
	if err != nil || !slices.ContainsFunc(list, func(x Lease) bool { return x.ID == r.Lease }) {
		return false
	}
	if r.Restart == h.Restart {
		return true
	}
	if err := h.Site.revoke(ctx, &r.Server, r.Lease, "the job was started again"); err != nil {
		h.say("the lease of an earlier run, %s, is left on %s: %v", r.Lease, r.Server.Address, err)
	}
	return false
}

// prepare takes the lease, if the job is to have one.
func (h *Hook) prepare(ctx context.Context, l *locked) error {
	job, err := h.ask(ctx)
	if err != nil {
		return err
	}
	gpus, err := h.Site.gpus(job)
	if err != nil {
		return err
	}
	if gpus == 0 {
		return l.remove()
	}
	return h.lease(ctx, l, gpus, h.Site.lasts(job), h.UID)
}

// ask asks Slurm for the job, again and again while its controller does not answer.
func (h *Hook) ask(ctx context.Context) (*Job, error) {
	for {
		job, err := h.Site.job(ctx, h.Job)
		if err == nil {
			return job, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(again):
		}
	}
}

// lease takes a lease, and keeps it and its credential in the folder. The credential is the user's with this number;
// below 0: it stays ours.
func (h *Hook) lease(ctx context.Context, l *locked, gpus int, lasts time.Duration, uid int) error {
	tenant, err := h.tenant()
	if err != nil {
		return err
	}
	v, lease, err := h.Site.place(ctx, &wish{h.Cluster, h.Job, tenant, gpus, lasts})
	if err != nil {
		return err
	}
	err = l.write(tokenName, []byte(lease.Credential+"\n"), 0o400, uid)
	if err == nil {
		err = l.keep(&record{Job: h.Job, Restart: h.Restart, Server: *v, Lease: lease.ID, GPUs: gpus})
	}
	if err != nil {
		return errors.Join(err, h.Site.revoke(ctx, v, lease.ID, "nobody got its credential"))
	}
	h.say("lease %s on %s: %d GPUs for tenant %s", lease.ID, v.Address, gpus, tenant)
	return nil
}

// Epilog gives the lease of the job's part on this node back. Nothing there is an error: Slurm would take the node out
// of service, and what is left on a server the controller's epilog gives back, or it expires.
func (h *Hook) Epilog(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(h.Site.Timeout))
	defer cancel()
	if err := h.giveBack(ctx, h.Node); err != nil {
		h.say("%v", err)
	}
}

func (h *Hook) giveBack(ctx context.Context, node string) error {
	path := h.Site.folder(node, h.Job)
	if _, err := os.Lstat(path); err != nil || node == "" {
		return nil //nolint:nilerr // it had none
	}
	l, err := lock(ctx, path)
	if err != nil {
		return err
	}
	defer l.unlock()
	r, err := readRecord(path)
	if err == nil && r != nil && r.Lease != "" {
		if err = h.Site.revoke(ctx, &r.Server, r.Lease, "the job has ended"); err != nil {
			err = fmt.Errorf("lease %s is left on %s until the controller ends it: %w", r.Lease, r.Server.Address, err)
		}
	}
	return errors.Join(err, l.remove())
}

// End ends all leases of the job, on whatever node they were taken: the controller's epilog.
func (h *Hook) End(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(h.Site.Timeout))
	defer cancel()
	_, err := h.Site.end(ctx, h.Cluster, "the job has ended", func(job uint32) bool { return job == h.Job })
	return errors.Join(err, os.RemoveAll(h.Site.folder(onController, h.Job)))
}

// end ends the leases of the cluster's jobs that somebody chooses.
func (s *Site) end(ctx context.Context, cluster, reason string, which func(uint32) bool) (ended []Lease, err error) {
	each := time.Duration(s.Timeout) / time.Duration(len(s.Servers)+1)
	for i := range s.Servers {
		v := &s.Servers[i]
		e := func() error {
			c, cancel := context.WithTimeout(ctx, each)
			defer cancel()
			list, err := s.leases(c, v, cluster)
			for _, l := range list {
				if job, ok := jobOf(cluster, l.Label); !ok || !which(job) {
					continue
				}
				if e := s.revoke(c, v, l.ID, reason); e != nil {
					err = errors.Join(err, e)
				} else {
					ended = append(ended, l)
				}
			}
			return err
		}()
		if e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", v.Address, e))
		}
	}
	return ended, err
}

// Sweep ends the leases of jobs that Slurm does not run any more, which are left where a server could not be reached
// when the job ended.
func (s *Site) Sweep(ctx context.Context, cluster string) ([]Lease, error) {
	// Those that are there first: whoever comes afterwards may have a job that squeue did not know yet.
	var before []string
	for i := range s.Servers {
		list, _ := s.leases(ctx, &s.Servers[i], cluster) // end says what is wrong with a server
		for _, l := range list {
			before = append(before, l.Label)
		}
	}
	jobs, err := s.jobs(ctx, 0)
	if err != nil {
		return nil, err
	}
	alive := map[uint32]bool{}
	for _, j := range jobs {
		alive[j.ID] = s.mayHold(j.State)
	}
	return s.end(ctx, cluster, "its job is gone", func(job uint32) bool {
		return !alive[job] && slices.Contains(before, label(cluster, job))
	})
}

// mayHold says whether a job in a state may have a lease.
func (s *Site) mayHold(state string) bool {
	switch state {
	case "PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT":
		return s.Mode == ModeController // it may be about to begin
	case "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
		"REVOKED":
		return false
	}
	return true
}

// Setup has the controller take the lease of a job that is about to begin.
func (h *Hook) Setup(ctx context.Context, gpus int) error {
	if gpus < 1 || gpus > maxGPUs {
		return fmt.Errorf("%w: %d GPUs; 1 to %d can be had", ErrJob, gpus, maxGPUs)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(h.Site.Timeout))
	defer cancel()
	l, err := lock(ctx, h.Site.folder(onController, h.Job))
	if err != nil {
		return err
	}
	defer l.unlock()
	if h.holds(ctx, l) {
		return nil
	}
	job, err := h.ask(ctx)
	if err == nil {
		err = h.lease(ctx, l, gpus, h.Site.lasts(job), -1)
	}
	if err != nil {
		return errors.Join(err, l.remove())
	}
	return nil
}

// Paths writes the variables of a job for which the controller has taken a lease.
func (h *Hook) Paths(out io.Writer, libraries string) error {
	folder := h.Site.folder(onController, h.Job)
	r, err := readRecord(folder)
	if err == nil && (r == nil || r.Lease == "") {
		err = errors.New("the job has no lease")
	}
	if err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(folder, tokenName))
	if err != nil {
		return err
	}
	vars := append(r.variables(), "SCUDA_TOKEN="+strings.TrimSpace(string(token)))
	if libraries != "" {
		vars = append(vars, "LD_PRELOAD="+filepath.Join(libraries, "libscuda.so"))
	}
	_, err = io.WriteString(out, strings.Join(vars, "\n")+"\n")
	return err
}

// variables are what programs need to know of the server.
func (r *record) variables() []string {
	vars := []string{"SCUDA_SERVER=" + r.Server.Address, variableGPUs + "=" + strconv.Itoa(r.GPUs),
		variableJob + "=" + strconv.FormatUint(uint64(r.Job), 10)}
	trust := r.Server.trust()
	for _, name := range []string{"SCUDA_FINGERPRINT", "SCUDA_CA"} {
		if trust[name] != "" {
			vars = append(vars, name+"="+trust[name])
		}
	}
	return vars
}

// Asks says whether a job with these licences asks for GPUs.
func (s *Site) Asks(licenses string) bool { return licences(licenses, s.Licence) > 0 }

// Ask says what a server has for this cluster, if it answers.
func (s *Site) Ask(ctx context.Context, v *Server) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.Timeout))
	defer cancel()
	var list []Lease
	if err := s.scuda(ctx, v, &list, "list"); err != nil {
		return "", err
	}
	gpus := 0
	for _, l := range list {
		if strings.HasPrefix(l.Label, "slurm/") && (s.Cluster == "" || strings.HasPrefix(l.Label, prefix(s.Cluster))) {
			gpus += len(l.GPUs)
		}
	}
	return fmt.Sprintf("%d of %d places are taken", gpus, v.Places), nil
}
