package ptx

// Textures is what texture and surface instructions reach; both methods return nil for a number that is no such object.
type Textures interface {
	Texture(handle uint64) Texture
	Surface(handle uint64) Surface
}

// Geometry is the shape of a texture or surface as an instruction names it.
type Geometry uint8

// Geometries.
const (
	Tex1D Geometry = iota
	Tex2D
	Tex3D
	TexLayered1D
	TexLayered2D
	TexCube
	TexLayeredCube
)

// TexQuery is one lane's texture access.
type TexQuery struct {
	Geom    Geometry
	Layer   uint32
	Integer bool // the coordinates are XI, YI, ZI, else X, Y, Z
	X, Y, Z float32

	XI, YI, ZI int32
	HasLevel   bool
	Level      float32 // of detail
	Gather     int     // the component of tld4, else -1
}

// Texture is a texture object. Sample returns 32 bits a component: the bits of a float, or an integer extended, as its
// mode says.
type Texture interface {
	Sample(q *TexQuery) [4]uint32
}

// Surface is a surface object. At returns the n bytes at a place (x counts bytes), or nil outside of it.
type Surface interface {
	At(geom Geometry, layer uint32, x, y, z int32, n int) []byte
}

type geometryFact struct {
	name    string
	geom    Geometry
	coords  int // without the layer
	layered bool
	words   int // operands in the instruction's vector
}

var geometries = []geometryFact{
	{".1d", Tex1D, 1, false, 1}, {".2d", Tex2D, 2, false, 2}, {".3d", Tex3D, 3, false, 4},
	{".a1d", TexLayered1D, 1, true, 2},
	{".a2d", TexLayered2D, 2, true, 4}, {".cube", TexCube, 3, false, 4}, {".acube", TexLayeredCube, 3, true, 4},
}
