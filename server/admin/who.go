package admin

import (
	"fmt"
	"time"
)

// Who is somebody who asks. An administrator may see and do everything; everybody else sees and ends what is of their
// tenant, and makes leases of it; whoever showed a lease's credential sees and ends what is of that lease.
type Who struct {
	Admin  bool
	Tenant string // "": a process of the server's own machine
	Lease  string // the id of the lease whose credential was shown; "": none
	From   string // the address or the process, for the log

	Credential string    // what tells a tenant's credential from others; leases that it makes hold while this does
	Until      time.Time // when that ends; zero: nobody knows
}

// May says whether something that is of a tenant, and of a lease ("": of none), is theirs to see and to end. Of what
// is not, they get no other answer than of what there is not.
func (w Who) May(tenant, lease string) bool {
	switch w.Role() {
	case RoleAdmin:
		return true
	case RoleLease:
		return w.Tenant == tenant && w.Lease == lease
	case RoleTenant:
		return w.Tenant == tenant
	}
	return false
}

// Roles of those who ask.
const (
	RoleAdmin  = "admin"
	RoleTenant = "tenant"
	RoleLease  = "lease" // of a tenant; never an administrator
	RoleNobody = "nobody"
)

// Roles are all of them.
func Roles() []string { return []string{RoleAdmin, RoleTenant, RoleLease, RoleNobody} }

// Role is the role of somebody.
func (w Who) Role() string {
	switch {
	case w.Lease != "" && w.Tenant != "":
		return RoleLease
	case w.Admin && w.Lease == "":
		return RoleAdmin
	case w.Tenant != "":
		return RoleTenant
	}
	return RoleNobody
}

// String is how people and the log are told of somebody.
func (w Who) String() string {
	switch role := w.Role(); {
	case role == RoleLease:
		return fmt.Sprintf("lease %s of tenant %s", w.Lease, w.Tenant)
	case w.Tenant != "":
		return "tenant " + w.Tenant
	case role == RoleAdmin:
		return "an administrator"
	}
	return "nobody"
}
