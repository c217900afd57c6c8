package tunnel

import (
	"errors"
	"fmt"
	"strings"
)

// ErrWay is a destination that cannot be meant.
var ErrWay = errors.New("bad destination")

// Way is how commands are run on another machine: by a program here, in whose arguments the command comes last.
type Way struct {
	Word    string   // as it was given
	Command []string // what runs a command there
	Joined  bool     // it gives its arguments, with blanks between them, to a shell there
}

// sshOptions go before the user's configuration. ssh is to run our command and nothing else, is to use a connection
// that is there but not to become one that others use, and is to notice by itself that the network is gone.
var sshOptions = []string{
	"-T", "-a", "-x", "-o", "ControlMaster=no", "-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no", "-o",
	"RemoteCommand=none", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
}

// ParseWay reads a destination: what ssh takes (HOST, USER@HOST, ssh://USER@HOST:PORT), docker://CONTAINER,
// podman://CONTAINER, or kube://[NAMESPACE/]POD[/CONTAINER].
func ParseWay(word string) (w Way, err error) {
	w.Word = word
	scheme, rest, ok := strings.Cut(word, "://")
	if !ok || scheme == "ssh" {
		if !plain(word) || rest == "" && ok {
			return w, fmt.Errorf("%w %.80q: write HOST, USER@HOST or ssh://USER@HOST:PORT", ErrWay, word)
		}
		w.Command = append(append(append(w.Command, "ssh"), sshOptions...), "--", word)
		w.Joined = true
		return w, nil
	}
	names := strings.Split(rest, "/")
	for _, name := range names {
		if !plain(name) {
			return w, fmt.Errorf("%w %.80q: %q is no name", ErrWay, word, name)
		}
	}
	switch {
	case (scheme == "docker" || scheme == "podman") && len(names) == 1:
		w.Command = []string{scheme, "exec", "-i", rest}
	case scheme == "kube" && len(names) <= 3:
		w.Command = []string{"kubectl", "exec", "-i"}
		if len(names) > 1 {
			w.Command = append(w.Command, "-n", names[0])
			names = names[1:]
		}
		w.Command = append(w.Command, names[0])
		if len(names) > 1 {
			w.Command = append(w.Command, "-c", names[1])
		}
		w.Command = append(w.Command, "--")
	default:
		return w, fmt.Errorf("%w %.80q: write USER@HOST, docker://CONTAINER, podman://CONTAINER or "+
			"kube://NAMESPACE/POD/CONTAINER", ErrWay, word)
	}
	return w, nil
}

// plain says whether a word is one to the programs that get it, and not an option.
func plain(word string) bool {
	return word != "" && word[0] != '-' && !strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r == 127 })
}

// arguments are those of a command that runs a script of the shell there; the script has no apostrophe.
func (w Way) arguments(script string) []string {
	if w.Joined { // by whichever shell the user has there
		return append(w.Command[1:len(w.Command):len(w.Command)], "exec sh -c '"+script+"'")
	}
	return append(w.Command[1:len(w.Command):len(w.Command)], "sh", "-c", script)
}

// trial is what a user can try by hand.
func (w Way) trial() string {
	if w.Command[0] == "ssh" {
		return "ssh " + w.Word + " true"
	}
	return strings.Join(w.Command, " ") + " true"
}
