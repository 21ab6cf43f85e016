; Inno Setup 6: iscc /DVersion=0.1.0 packaging\kvchat.iss builds dist\kvchat-0.1.0-windows-x86_64.exe from dist\kvchat.
; Installs for one user, without administrator rights. Uninstalling keeps chats, models and settings.
[Setup]
AppId={{6E0B7C0A-3B63-4E0C-9C5E-2F0B9D5B7A11}
AppName=kvchat
AppVersion={#Version}
AppPublisher=The kvchat maintainers
DefaultDirName={localappdata}\Programs\kvchat
DefaultGroupName=kvchat
DisableProgramGroupPage=yes
PrivilegesRequired=lowest
ArchitecturesAllowed=x64compatible
ArchitecturesInstallIn64BitMode=x64compatible
MinVersion=10.0.17763
LicenseFile=..\dist\kvchat\LICENCES.txt
SetupIconFile=..\dist\kvchat\_internal\kvchat.ico
UninstallDisplayIcon={app}\kvchat-app.exe
OutputDir=..\dist
OutputBaseFilename=kvchat-{#Version}-windows-x86_64
Compression=lzma2/max
SolidCompression=yes
WizardStyle=modern
CloseApplications=yes
ChangesEnvironment=yes

[Files]
Source: "..\dist\kvchat\*"; DestDir: "{app}"; Flags: ignoreversion recursesubdirs createallsubdirs

[InstallDelete]
; Otherwise, leftover files of an earlier version would be imported.
Type: filesandordirs; Name: "{app}\_internal"

[Icons]
; The program without a console; kvchat.exe is for the terminal.
Name: "{userprograms}\kvchat"; Filename: "{app}\kvchat-app.exe"; AppUserModelID: "kvchat"

[Tasks]
Name: path; Description: "Add the command ""kvchat"" to the PATH"; Flags: unchecked

[Registry]
Root: HKCU; Subkey: "Environment"; ValueType: expandsz; ValueName: "Path"; ValueData: "{olddata};{app}"; Tasks: path; Check: not OnPath
; kvchat opens its links and exported chats. For models and MCP bundles, it is added to the list of apps.
Root: HKCU; Subkey: "Software\Classes\kvchat"; ValueType: string; ValueData: "URL:kvchat"; Flags: uninsdeletekey
Root: HKCU; Subkey: "Software\Classes\kvchat"; ValueType: string; ValueName: "URL Protocol"; ValueData: ""
Root: HKCU; Subkey: "Software\Classes\kvchat\shell\open\command"; ValueType: string; ValueData: """{app}\kvchat-app.exe"" open ""%1"""
Root: HKCU; Subkey: "Software\Classes\kvchat.chat"; ValueType: string; ValueData: "Chat with its memory"; Flags: uninsdeletekey
Root: HKCU; Subkey: "Software\Classes\kvchat.chat\shell\open\command"; ValueType: string; ValueData: """{app}\kvchat-app.exe"" open ""%1"""
Root: HKCU; Subkey: "Software\Classes\.kvchat"; ValueType: string; ValueData: "kvchat.chat"; Flags: uninsdeletekey
Root: HKCU; Subkey: "Software\Classes\.gguf\OpenWithProgids"; ValueType: string; ValueName: "kvchat.chat"; ValueData: ""; Flags: uninsdeletevalue
Root: HKCU; Subkey: "Software\Classes\kvchat.mcpb"; ValueType: string; ValueData: "MCP bundle"; Flags: uninsdeletekey
Root: HKCU; Subkey: "Software\Classes\kvchat.mcpb\shell\open\command"; ValueType: string; ValueData: """{app}\kvchat-app.exe"" open ""%1"""
Root: HKCU; Subkey: "Software\Classes\.mcpb\OpenWithProgids"; ValueType: string; ValueName: "kvchat.mcpb"; ValueData: ""; Flags: uninsdeletevalue
; kvchat itself sets this value (start at login); uninstalling removes it.
Root: HKCU; Subkey: "Software\Microsoft\Windows\CurrentVersion\Run"; ValueName: "kvchat"; Flags: uninsdeletevalue dontcreatekey

[Run]
Filename: "{app}\kvchat-app.exe"; Description: "Start kvchat"; Flags: nowait postinstall skipifsilent

[Code]
function OnPath: Boolean;
var
  Path: String;
begin
  Result := RegQueryStringValue(HKCU, 'Environment', 'Path', Path)
    and (Pos(';' + Lowercase(ExpandConstant('{app}')) + ';', ';' + Lowercase(Path) + ';') > 0);
end;

procedure CurUninstallStepChanged(Step: TUninstallStep);
var
  Path: String;
begin
  if (Step = usUninstall) and RegQueryStringValue(HKCU, 'Environment', 'Path', Path) then
    if StringChangeEx(Path, ';' + ExpandConstant('{app}'), '', True) > 0 then
      RegWriteExpandStringValue(HKCU, 'Environment', 'Path', Path);
end;
