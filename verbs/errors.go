package verbs

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrUnavailable is wrapped by the error of a machine that has no RDMA: no library, no kernel module, or no device.
var ErrUnavailable = errors.New("RDMA is not available")

// ErrNoGID is wrapped by the error of a device without an address that fits the wishes.
var ErrNoGID = errors.New("no suitable GID")

// UnavailableError says what is missing.
type UnavailableError struct {
	Reason string
	Remedy string
}

func (e *UnavailableError) Error() string {
	return "RDMA is not available: " + e.Reason + "; " + e.Remedy
}

// Is makes it an [ErrUnavailable].
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// Error is a failed call of the verbs interface.
type Error struct {
	Call   string // such as ibv_reg_mr
	Object string // what it was called for, such as the device's name; may be empty
	Errno  syscall.Errno
	Remedy string // may be empty
}

func (e *Error) Error() string {
	text := e.Call
	if e.Object != "" {
		text += " (" + e.Object + ")"
	}
	text += ": " + e.Errno.Error()
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// Unwrap gives the errno.
func (e *Error) Unwrap() error { return e.Errno }

// failed makes an error of a C function's result.
func failed(call, object string, errno int) error {
	if errno == 0 {
		return nil
	}
	return newError(call, object, syscall.Errno(errno))
}

// newError is an error with the remedies that do not depend on the call.
func newError(call, object string, errno syscall.Errno) *Error {
	e := &Error{Call: call, Object: object, Errno: errno}
	switch errno {
	case syscall.EACCES, syscall.EPERM:
		e.Remedy = "the user needs access to the files in /dev/infiniband (group rdma, or a udev rule)"
	case syscall.EBUSY:
		e.Remedy = "close what was made from it first"
	}
	return e
}

// StatusError is a request that was not carried out.
type StatusError struct {
	Status Status
	Vendor uint32
}

func (e *StatusError) Error() string {
	text := e.Status.String()
	if hint := statusHints[e.Status]; hint != "" {
		text += ": " + hint
	}
	if e.Vendor != 0 {
		text += fmt.Sprintf(" (vendor code %#x)", e.Vendor)
	}
	return text
}

// Is compares statuses, so that errors.Is(err, &StatusError{Status: StatusRetries}) works.
func (e *StatusError) Is(target error) bool {
	t, ok := target.(*StatusError)
	return ok && t.Status == e.Status && (t.Vendor == 0 || t.Vendor == e.Vendor)
}
