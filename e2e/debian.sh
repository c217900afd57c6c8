# Sourced by scripts that take files out of packages of several Debian releases, where nothing is to be installed. The
# mirror is the one that apt is configured with; $work is a folder for lists.

debian_mirror() {
  local release mirror
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' |
    awk -v r="$release" '$2 == r && $3 == "main" {print $1; exit}')
  if [ -z "$mirror" ]; then
    echo "apt has no source for Debian $release" >&2
    return 1
  fi
  echo "$mirror"
}

# debian_apt RELEASE COMPONENTS [ARCHITECTURE]: then the array apt is the command for the packages of these.
debian_apt() {
  local at=$work/$1${3:+-$3} mirror
  apt=(apt-get -qq -o "Dir::Etc::sourcelist=$at/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$at/lists" -o "Dir::State::status=$at/status"
    -o "Dir::Cache=$at/cache" -o APT::Sandbox::User= ${3:+-o "APT::Architecture=$3" -o "APT::Architectures::=$3"})
  [ -e "$at" ] && return
  mirror=$(debian_mirror)
  mkdir -p "$at/lists/partial" "$at/cache/archives/partial"
  : >"$at/status" # nothing is installed
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 $2" >"$at/sources.list"
  "${apt[@]}" update
}
