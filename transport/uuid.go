package transport

import "fmt"

// InstancePrefix begins the UUID of an instance of MIG, as the driver's tools write it.
const InstancePrefix = "MIG-"

// UUIDText is the UUID as the driver's tools and CUDA_VISIBLE_DEVICES have it. Of an instance of MIG the older of
// CUDA's two calls knows that of its GPU alone.
func (d *Device) UUIDText() string {
	kind := "GPU-"
	if d.UUID != d.UUIDv1 && d.UUIDv1 != [16]byte{} {
		kind = InstancePrefix
	}
	u := d.UUID
	return fmt.Sprintf("%s%x-%x-%x-%x-%x", kind, u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
